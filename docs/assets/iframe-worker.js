/* Search in pages that are opened from a folder (file://).
 *
 * Browsers refuse Web Workers there, and the theme searches in one. On file:// this replaces Worker by a class that
 * runs the same script in a hidden frame. On a server nothing changes. The theme looks for the name IFrameWorker. */
(() => {
  if (location.protocol !== "file:") return;

  class IFrameWorker extends EventTarget {
    constructor(url) {
      super();
      this.onmessage = null;
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      this.ready = new Promise((done) => this.frame.addEventListener("load", done, { once: true }));
      this.frame.srcdoc = `<!doctype html><base href="${location.href}"><script>
        self.postMessage = (data) => parent.dispatchEvent(
          new parent.CustomEvent("frame-message", { detail: { from: self, data } }));
        self.importScripts = (...urls) => urls.reduce((before, url) => before.then(() => new Promise((done, fail) => {
          const script = document.createElement("script");
          script.src = url; script.onload = done; script.onerror = fail;
          document.head.append(script);
        })), Promise.resolve());
      <\/script><script src="${url}"><\/script>`;
      addEventListener("frame-message", ({ detail }) => {
        if (detail.from !== this.frame.contentWindow) return;
        const event = new MessageEvent("message", { data: detail.data });
        this.dispatchEvent(event);
        if (this.onmessage) this.onmessage(event);
      });
      (document.body || document.documentElement).append(this.frame);
    }

    postMessage(data) {
      this.ready.then(() => this.frame.contentWindow.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  }

  window.IFrameWorker = IFrameWorker;
  window.Worker = IFrameWorker;
})();
