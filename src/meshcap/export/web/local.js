// What page.js asks in place of a server: a worker that has the model.
"use strict";

globalThis.local = (() => {
  const about = document.getElementById("about");
  const asked = new Map();
  let worker = null;
  let number = 0;

  let facts = ""; // of the model, as it was loaded
  let memory = ""; // of the page, where the browser tells

  const megabytes = (bytes) => Math.round(bytes / 1e6);

  async function measured(seconds) {
    about.textContent = `${facts}; ${seconds.toFixed(1)} s for the last picture${memory}`;
    if (memory || !globalThis.crossOriginIsolated || !performance.measureUserAgentSpecificMemory) return;
    memory = " ";
    const { bytes } = await performance.measureUserAgentSpecificMemory();
    memory = `, ${megabytes(bytes)} MB of memory`;
    about.textContent += memory;
  }

  function told({ data }) {
    if (data.bytes) about.textContent = `Loading the model: ${megabytes(data.loaded)} of ${megabytes(data.bytes)} MB`;
    if (data.failed) about.textContent = data.failed;
    if (data.ready) {
      const { name, words, gpu, threads, seconds } = data.ready;
      const by = gpu ? "the graphics card" : `${threads} thread${threads === 1 ? "" : "s"}`;
      facts = `${name}, ${words.toLocaleString("en")} words; loaded in ${seconds.toFixed(1)} s, runs on ${by}`;
      about.textContent = facts;
      document.body.dataset.ready = JSON.stringify(data.ready);
    }
    if (!asked.has(data.id)) return;
    const { resolve, reject } = asked.get(data.id);
    asked.delete(data.id);
    if (data.error) reject(new Error(data.error));
    else resolve(data.found);
    if (data.found) measured(data.found.seconds);
  }

  // Threads need two headers that a plain web host does not send: a service worker adds them, and keeps the files, so
  // that the page works without a network. It begins with the next load, which is now.
  async function isolated() {
    if (!navigator.serviceWorker) return;
    try {
      await navigator.serviceWorker.register("offline.js");
      await navigator.serviceWorker.ready;
    } catch {
      return; // not allowed here: one thread, and files by the browser's own cache
    }
    if (globalThis.crossOriginIsolated || sessionStorage.getItem("reloaded")) return;
    sessionStorage.setItem("reloaded", "yes");
    location.reload();
    await new Promise(() => {});
  }

  async function start() {
    about.textContent = "Loading the model …";
    await isolated();
    worker = new Worker("captioner.js", { type: "module" });
    worker.addEventListener("message", told);
    worker.addEventListener("error", (event) => { about.textContent = `The model cannot be loaded: ${event.message || "see the console"}`; });
  }
  const started = start();

  document.querySelector("footer").textContent = "Pictures stay on this machine: the model was loaded into this page, and nothing is sent anywhere.";

  return {
    async caption(file, options) {
      await started;
      number += 1;
      return new Promise((resolve, reject) => {
        asked.set(number, { resolve, reject });
        worker.postMessage({ id: number, file, options });
      });
    },
  };
})();
