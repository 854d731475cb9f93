"""The hub's client against a server on this machine: push a model, load it again. Usage: FOLDER."""

import base64
import hashlib
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "a" * 40
FILES = {}


class Hub(BaseHTTPRequestHandler):
    """The few requests of a small upload and a download."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body, address = self.body(), f"http://127.0.0.1:{self.server.server_port}"
        if self.path.endswith("/api/repos/create"):
            self.answer({"url": f"{address}/me/name", "name": "me/name"})
        elif "/preupload/" in self.path:
            files = [
                {"path": file["path"], "uploadMode": "regular", "shouldIgnore": False}
                for file in json.loads(body)["files"]
            ]
            self.answer({"files": files})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    FILES[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{address}/me/name/commit/{COMMIT}", "commitOid": COMMIT})
        else:
            self.answer({})

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        name = self.path.rpartition("/")[2]
        if "/resolve/" in self.path:
            content = FILES[name]
            headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{hashlib.sha1(content).hexdigest()}"'}
            self.answer(content, headers)
        elif "/tree/" in self.path:
            entries = [
                {"type": "file", "path": path, "size": len(content), "oid": COMMIT}
                for path, content in FILES.items()
            ]
            self.answer(entries)
        else:
            siblings = [{"rfilename": path} for path in FILES]
            self.answer({"id": "me/name", "sha": COMMIT, "siblings": siblings})

    def body(self):
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def answer(self, content, headers=None):
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(200)
        for name, value in {**(headers or {}), "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def log_message(self, *_):
        pass


def main(folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
    os.environ["HF_HOME"] = folder
    os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1"
    import torch

    import tacit
    from tacit.integrations.hugging_face import from_pretrained, push_to_hub

    torch.manual_seed(0)
    net = tacit.models.MLP(4, [8], 2)
    model = tacit.variational(net, likelihood=tacit.Categorical(["no", "yes"])).eval()
    FILES["evil.py"] = FILES["evil.bin"] = b"never downloaded"
    url = push_to_hub(model, "me/name", token="hf_nobody", metrics={"nll": 0.4})
    loaded = from_pretrained("me/name")
    x = torch.randn(3, 4)
    same = torch.equal(loaded(x), model(x)) and loaded.likelihood.class_names == ("no", "yes")
    fetched = {path.name for path in Path(folder).rglob("*") if path.is_symlink()}
    found = {"url": url, "same": same, "pushed": sorted(FILES), "fetched": sorted(fetched)}
    (Path(folder) / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
