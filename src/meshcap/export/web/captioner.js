// A worker: loads the model with onnxruntime-web and captions pictures. Nothing leaves this machine.
//
// It is sent { id, file, options } and answers { id, found } or { id, error }; while it loads, { loaded, bytes },
// then { ready } or { failed }.

import { read } from "./pictures.js";
import { search } from "./search.js";
import { Language } from "./sentence.js";

let model; // model.json: how the graphs are run, and the words
let language;
let ort;
const sessions = {};

async function load() {
  const start = performance.now();
  model = await (await fetched("model.json")).json();
  language = new Language(model);
  const found = navigator.gpu && model.runtime.webgpu ? await navigator.gpu.requestAdapter().catch(() => null) : null;
  const gpu = found && !(found.info && found.info.isFallbackAdapter) ? found : null; // that one only pretends to be a card
  const runtime = model.runtime[gpu ? "webgpu" : "wasm"];
  ort = await import(`./${runtime.main}`);
  // Threads share memory, which browsers allow where the host sends two headers: see the documentation.
  const threads = self.crossOriginIsolated ? Math.min(8, navigator.hardwareConcurrency || 1) : 1;
  const wasmBinary = await download(runtime.wasm, () => {});
  Object.assign(ort.env.wasm, { numThreads: threads, wasmPaths: { mjs: address(runtime.glue) }, wasmBinary });
  ort.env.logLevel = "error";
  let loaded = 0;
  const bytes = model.files.see.bytes + model.files.say.bytes;
  for (const [name, providers] of [["say", ["wasm"]], ["see", gpu ? ["webgpu", "wasm"] : ["wasm"]]]) {
    const graph = await download(model.files[name], (more) => {
      loaded += more;
      postMessage({ loaded, bytes });
    });
    // Weights of 8 bits are made float32 once, when the session is made: see meshcap/backends/onnx_backend.py.
    const extra = { session: { disable_quant_qdq: "1", use_device_allocator_for_initializers: "1" } };
    sessions[name] = await ort.InferenceSession.create(graph, { executionProviders: providers, logSeverityLevel: 3, extra });
  }
  postMessage({
    ready: { name: model.name, words: model.words.length, threads, gpu: Boolean(gpu), seconds: (performance.now() - start) / 1000 },
  });
}

const address = (name) => new URL(name, self.location.href).href;

async function fetched(name) {
  const answer = await fetch(address(name)).catch(() => null);
  if (!answer || !answer.ok) throw new Error(`${name} cannot be loaded${answer ? ` (status ${answer.status})` : ""}`);
  return answer;
}

// A file of the model, unpacked: a host may do so itself.
async function download({ name, size }, progress) {
  const reader = (await fetched(name)).body.getReader();
  const parts = [];
  for (let part = await reader.read(); !part.done; part = await reader.read()) {
    parts.push(part.value);
    progress(part.value.length);
  }
  const packed = new Blob(parts);
  const start = new Uint8Array(await packed.slice(0, 2).arrayBuffer());
  const zipped = start[0] === 0x1f && start[1] === 0x8b;
  const stream = zipped ? packed.stream().pipeThrough(new DecompressionStream("gzip")) : packed.stream();
  const content = await new Response(stream).arrayBuffer();
  if (content.byteLength !== size) throw new Error(`${name} did not arrive whole: load the page again`);
  return new Uint8Array(content);
}

const ARRAYS = { float32: Float32Array, int64: BigInt64Array, bool: Uint8Array };

// The state of a search under way: what `see` gave and what `say` changes, as model.json tells of each part.
class Steps {
  constructor(seen, width, places) {
    this.width = width;
    this.state = {};
    for (const part of model.state) {
      if (part.seen) this.state[part.name] = repeated(seen[part.name], part.shape.indexOf("width"), width);
      else {
        const dims = part.shape.map((axis) => sizeOf(axis, width, places));
        const data = new ARRAYS[part.dtype](dims.reduce((a, b) => a * b, 1));
        this.state[part.name] = new ort.Tensor(part.dtype, data, dims);
      }
    }
  }

  async step(words) {
    const ids = new ort.Tensor("int64", BigInt64Array.from(words, BigInt), [1, this.width]);
    const given = Object.fromEntries(Object.entries({ ids, ...this.state }).filter(([name]) => sessions.say.inputNames.includes(name)));
    const found = await sessions.say.run(given);
    for (const part of model.state) if (part.changes) this.state[part.name] = found[`next.${part.name}`];
    const { data } = found.log_probs;
    const size = data.length / this.width;
    return words.map((_, at) => data.subarray(at * size, (at + 1) * size));
  }

  reorder(parents) {
    for (const { name, follows } of model.state) {
      if (!follows) continue;
      const { type, data, dims } = this.state[name];
      const row = data.length / this.width;
      const rows = new data.constructor(data.length);
      parents.forEach((parent, at) => rows.set(data.subarray(parent * row, (parent + 1) * row), at * row));
      this.state[name] = new ort.Tensor(type, rows, dims);
    }
  }
}

function sizeOf(axis, width, places) {
  if (typeof axis === "number") return axis;
  const [, times, name] = /^(?:(\d+)\*)?(\w+)$/.exec(axis);
  return Number(times || 1) * { pictures: 1, width, places }[name];
}

// A tensor for one hypothesis as one for `width` of them, along an axis; -1: it is the same for all.
function repeated(tensor, axis, width) {
  if (axis < 0) return tensor;
  const { type, data, dims } = tensor;
  const block = dims.slice(axis).reduce((a, b) => a * b, 1);
  const rows = new data.constructor(data.length * width);
  for (let at = 0; at < data.length * width; at += block) {
    const from = Math.floor(at / block / width) * block;
    rows.set(data.subarray(from, from + block), at);
  }
  return new ort.Tensor(type, rows, dims.with(axis, width));
}

async function caption(file, options) {
  const { rules, strategy } = language.plan(options); // mistakes are told before the work
  const start = performance.now();
  const { data } = await read(file, model.settings);
  const area = model.settings.size ** 2;
  const pixels = new Uint8Array(3 * area);
  for (let at = 0; at < area; at += 1) for (let channel = 0; channel < 3; channel += 1) pixels[channel * area + at] = data[4 * at + channel];
  const seen = await sessions.see.run({ pixels: new ort.Tensor("uint8", pixels, [1, 3, model.settings.size, model.settings.size]) });
  const width = strategy.samples || strategy.beams * (strategy.automaton ? strategy.automaton.next.length : 1);
  const steps = new Steps(seen, width, width * rules.maxLength);
  const found = await search(model.settings, (words) => steps.step(words), (parents) => steps.reorder(parents), strategy, rules);
  if (Number.isNaN(found[0].score)) throw new Error("the model computes no numbers for this picture");
  return { ...language.captions(found, options, model.calibration), seconds: (performance.now() - start) / 1000 };
}

const loading = load().catch((error) => {
  postMessage({ failed: String(error.message || error) });
  throw error;
});
let turn = loading.catch(() => null); // one picture after the other
self.addEventListener("message", ({ data: { id, file, options } }) => {
  turn = turn.then(async () => {
    try {
      await loading;
      postMessage({ id, found: await caption(file, options) });
    } catch (error) {
      postMessage({ id, error: String(error.message || error) });
    }
  });
});
