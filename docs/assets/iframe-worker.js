// Search when the site is opened from the file system: browsers refuse workers there, so a hidden frame runs the script.
// The offline plugin of mkdocs-material loads a script for this from the network unless one with "iframe-worker" in its name is given.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      frame.srcdoc = `<script src="${new URL(url, location.href)}"></` + "script>";
      this.target = new Promise((resolve) => frame.addEventListener("load", () => resolve(frame.contentWindow)));
      this.target.then((target) => {
        target.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      });
      document.documentElement.appendChild(frame);
    }
    postMessage(data) {
      this.target.then((target) => target.dispatchEvent(new MessageEvent("message", { data })));
    }
  };
}
