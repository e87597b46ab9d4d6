// openapi.json as a page to read: each operation with its fields, answers and a command to try.
"use strict";

const DEPTH = 6; // of schemas inside schemas
let api;

const make = (tag, text = "", attributes = {}) => Object.assign(document.createElement(tag), { textContent: text, ...attributes });

function resolved(schema) {
  const name = schema && schema.$ref && schema.$ref.split("/").at(-1);
  return name ? api.components.schemas[name] || {} : schema || {};
}

// "integer", "list of string", "string or number".
function kindOf(given) {
  const schema = resolved(given);
  const options = (schema.anyOf || schema.oneOf || []).filter((one) => one.type !== "null");
  if (options.length) return [...new Set(options.map(kindOf))].join(" or ");
  if (schema.enum || schema.const !== undefined) return (schema.enum || [schema.const]).map((one) => JSON.stringify(one)).join(", ");
  if (schema.type === "array") return `list of ${kindOf(schema.items)}`;
  if (schema.format === "binary") return "bytes";
  return schema.type || (schema.properties ? "object" : "anything");
}

// The object inside a schema, if it holds one: of a list its items, of alternatives the first.
function inside(given) {
  const schema = resolved(given);
  if (schema.properties) return schema;
  const next = schema.items || (schema.anyOf || schema.oneOf || []).map(resolved).find((one) => one.properties || one.items);
  return next ? inside(next) : null;
}

// Rows of names, kinds and meanings; what lies inside is set in.
function rows(schema, depth = 0) {
  return Object.entries(schema.properties || {}).flatMap(([name, given]) => {
    const field = { ...resolved(given), ...given };
    const needed = (schema.required || []).includes(name);
    const usual = field.default === undefined || field.default === null ? "" : ` Default: ${JSON.stringify(field.default)}.`;
    const row = make("tr");
    const cell = make("td");
    cell.append(make("code", name), needed ? " *" : "");
    cell.style.setProperty("--depth", depth);
    row.append(cell, make("td", kindOf(given)), make("td", `${field.description || ""}${usual}`));
    const deeper = depth < DEPTH && inside(given);
    return [row, ...(deeper ? rows(deeper, depth + 1) : [])];
  });
}

function table(title, schema) {
  const found = rows(schema);
  if (!found.length) return [];
  const whole = make("table");
  whole.append(make("caption", title), ...found);
  return [whole];
}

function example(method, path, content) {
  const place = new URL(path.slice(1), location.href).href;
  if (method === "get") return `curl ${place}`;
  if (content["multipart/form-data"]) return `curl -F picture=@photo.jpg ${place}`;
  const body = path.startsWith("/api/") ? '{"images": ["…"], "prompt": "Describe this picture."}' : "{…}";
  return `curl -H "Content-Type: application/json" -d '${body}' ${place}`;
}

function show(path, method, about) {
  const element = $("operation").content.firstElementChild.cloneNode(true);
  element.querySelector(".method").textContent = method.toUpperCase();
  element.querySelector(".path").textContent = path;
  element.querySelector(".note").textContent = about.summary || "";
  const parts = element.querySelector(".parts");
  const content = about.requestBody ? about.requestBody.content : {};
  if (about.description) parts.append(make("p", about.description));
  parts.append(make("pre", example(method, path, content)));
  const stated = content["multipart/form-data"]; // the same options, which may stand in the address as well
  if (stated) parts.append(make("p", "The options of the form may stand in the address, after a question mark, and in JSON.", { className: "note" }));
  const query = stated ? {} : { properties: Object.fromEntries((about.parameters || []).map((one) => [one.name, { description: one.description, ...one.schema }])) };
  parts.append(...table("In the address, after a question mark", query));
  for (const [kind, { schema }] of Object.entries(content)) parts.append(...table(`Request: ${kind}`, inside(schema) || {}));
  for (const [status, answer] of Object.entries(about.responses || {})) {
    const [[kind, body] = []] = Object.entries(answer.content || {});
    const fields = body && Number(status) < 300 ? table(`Answer ${status}: ${kind}`, inside(body.schema) || {}) : [];
    parts.append(...(fields.length ? fields : [make("p", `${status}: ${answer.description}`, { className: "note" })]));
  }
  return element;
}

const $ = (id) => document.getElementById(id);

fetch("openapi.json").then((answer) => answer.json()).then((given) => {
  api = given;
  $("about").textContent = `What programs may ask, version ${api.info.version}`;
  const groups = new Map();
  for (const [path, methods] of Object.entries(api.paths)) {
    for (const [method, about] of Object.entries(methods)) {
      const [tag = "other"] = about.tags || [];
      groups.set(tag, [...(groups.get(tag) || []), show(path, method, about)]);
    }
  }
  const first = (tag) => (tag === "captions" ? 0 : tag === "state" ? 2 : 1);
  for (const [tag, operations] of [...groups].sort(([a], [b]) => first(a) - first(b))) {
    $("operations").append(make("h2", tag.slice(0, 1).toUpperCase() + tag.slice(1)), ...operations);
  }
}).catch(() => { $("operations").textContent = "openapi.json cannot be read."; });
