// A service worker: sends the headers that threads need, whatever the host sends, and keeps the files of the page.
// VERSION and FILES stand above, from the export.

const HEADERS = {
  "Cross-Origin-Opener-Policy": "same-origin",
  "Cross-Origin-Embedder-Policy": "require-corp",
  "Cross-Origin-Resource-Policy": "same-origin",
  // Of the page and of its worker, which has no other policy.
  "Content-Security-Policy": POLICY,
};
const CACHE = `meshcap ${VERSION}`;
const place = new URL("./", self.location.href).href;

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil((async () => {
  for (const name of await caches.keys()) if (name.startsWith("meshcap ") && name !== CACHE) await caches.delete(name);
  await self.clients.claim();
})()));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const name = request.url.split(/[?#]/)[0].slice(place.length);
  if (request.method === "GET" && request.url.startsWith(place) && FILES.includes(name || "index.html")) {
    event.respondWith(answer(request));
  }
});

async function answer(request) {
  const cache = await caches.open(CACHE).catch(() => null);
  let found = cache && await cache.match(request, { ignoreSearch: true });
  if (!found) {
    found = await fetch(request);
    if (found.status !== 200) return found;
    if (cache) cache.put(request, found.clone()).catch(() => {}); // no room: the network has it
  }
  const headers = new Headers(found.headers);
  for (const [name, value] of Object.entries(HEADERS)) headers.set(name, value);
  return new Response(found.body, { status: 200, headers });
}
