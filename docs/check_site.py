"""Open built pages in Chromium from the file system and report what is broken.

    python docs/check_site.py --generate site results benchmarks/results

Every page is opened at the width of a laptop and of a phone. Reported are: errors on the console,
pages that scroll sideways, pictures that did not load, elements cut off by or wider than what
contains them, links to files or anchors that do not exist, and a search without results. Needs
Chromium (Debian: apt-get install chromium) and nothing from PyPI.
"""

from __future__ import annotations

import argparse
import csv
import functools
import json
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urljoin, urlsplit

WIDTHS = (1280, 390)
HEIGHT = 900
SECONDS = 300  # longest wait for the browser
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND", "--remote-debugging-pipe",
)  # fmt: skip

# Returns the problems of the page as texts, once its pictures and search have loaded.
PROBE = """
(async () => {
  for (const image of document.images) { image.loading = "eager"; }
  await Promise.all([...document.images].map((image) => image.decode().catch(() => {})));
  await new Promise((resolve) => setTimeout(resolve, 100));
  const found = [];
  const root = document.documentElement;
  const name = (element) => {
    const text = (element.alt || element.textContent).trim().replace(/\\s+/g, " ").slice(0, 40);
    return `${element.tagName.toLowerCase()} "${text}"`;
  };
  if (root.scrollWidth > root.clientWidth) {
    found.push(`scrolls sideways: ${root.scrollWidth} px in ${root.clientWidth} px`);
  }
  for (const image of document.images) {
    if (!image.naturalWidth) { found.push(`picture not loaded: ${image.getAttribute("src")}`); }
  }
  const shown = (element) => element.checkVisibility() && element.getClientRects().length;
  for (const element of document.querySelectorAll("table, pre, img, figure, h1, h2, h3, p, li")) {
    if (!shown(element) || element.closest("nav, header, .md-search, .md-source-file")) continue;
    const right = element.getBoundingClientRect().right;
    const style = getComputedStyle(element);
    if (/hidden|clip/.test(style.overflowX) && element.scrollWidth > element.clientWidth + 1) {
      found.push(`cut off: ${name(element)}`);
    }
    if (element.matches("pre")) continue;  // on phones it extends to the edge of the screen
    let box = element.parentElement;
    for (; box && !/auto|scroll/.test(getComputedStyle(box).overflowX); box = box.parentElement) {
      const rect = box.getBoundingClientRect();
      if (getComputedStyle(box).display !== "inline" && rect.width && right > rect.right + 1) {
        found.push(`wider than its ${box.tagName.toLowerCase()}: ${name(element)}`);
        break;
      }
    }
  }
  return [...new Set(found)];
})()
"""

# Returns the titles of the pages that the search finds; expects the search to be open.
RESULTS = """
(async () => {
  for (let tries = 0; tries < 100; tries++) {
    const titles = [...document.querySelectorAll(".md-search-result__item h1")];
    if (titles.length) { return titles.map((title) => title.textContent.trim()); }
    await new Promise((resolve) => setTimeout(resolve, 100));
  }
  return [];
})()
"""


class Browser:
    """A headless Chromium with one tab, driven by the DevTools protocol over a pair of pipes.

    Args:
        program: Path of Chromium.
        profile: Empty folder for its profile.
    """

    def __init__(self, program: str, profile: str) -> None:
        commands, self._commands = os.pipe()
        self._messages, messages = os.pipe()

        def connect() -> None:  # Chromium reads descriptor 3 and writes to 4
            for source, target in ((commands, 3), (messages, 4)):
                os.dup2(source, target)
                os.set_inheritable(target, True)

        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stderr=subprocess.DEVNULL, preexec_fn=connect, pass_fds=(3, 4),
        )  # fmt: skip
        os.close(commands)
        os.close(messages)
        self._buffer = b""
        self._count = 0
        self._session: str | None = None
        self.errors: list[str] = []
        tabs = self.call("Target.getTargets")["targetInfos"]
        tab = next(info["targetId"] for info in tabs if info["type"] == "page")
        attached = self.call("Target.attachToTarget", targetId=tab, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        self.call("Emulation.setFocusEmulationEnabled", enabled=True)  # pages get focus events

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; collect errors on the console meanwhile."""
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive()
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result

    def open(self, address: str, width: int) -> None:
        """Open a page at a width and wait until it has loaded."""
        phone = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=HEIGHT, deviceScaleFactor=1, mobile=phone,
        )  # fmt: skip
        self.errors.clear()
        self._loaded = False
        self.call("Page.navigate", url=address)
        while not self._loaded:
            self._receive()

    def evaluate(self, script: str) -> Any:
        """Return the value of a script, or of its promise."""
        found = self.call(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *error: object) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(SECONDS)
        except (EOFError, OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        os.close(self._commands)
        os.close(self._messages)

    def _receive(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            if not select.select([self._messages], [], [], SECONDS)[0]:
                raise TimeoutError(f"Chromium has not answered for {SECONDS} seconds.")
            part = os.read(self._messages, 1 << 20)
            if not part:
                raise EOFError("Chromium ended unexpectedly.")
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method", ""), message.get("params", {}))
        return message

    def _note(self, event: str, found: Mapping[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Runtime.exceptionThrown":
            self.errors.append(found["exceptionDetails"]["text"])
        elif event == "Runtime.consoleAPICalled" and found["type"] in ("error", "assert"):
            self.errors.append(" ".join(str(part.get("value")) for part in found["args"]))
        elif event == "Log.entryAdded" and found["entry"]["level"] == "error":
            entry = found["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")


class Links(HTMLParser):
    """Collects the anchors of a page and what it refers to."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.anchors = {"", "__top"}
        self.targets: set[str] = set()
        self.feed(re.sub(r'"data:[^"]*"', '""', page.read_text()))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the anchors and references of an element."""
        given = dict(attrs)
        self.anchors |= {given[key] or "" for key in ("id", "name") if key in given}
        self.targets |= {given[key] or "" for key in ("href", "src") if given.get(key)}


def pages_of(paths: Sequence[Path]) -> list[Path]:
    """Return the HTML pages among paths and in folders, without 404.html, which servers use."""
    found = []
    for path in paths:
        if not path.exists():
            raise SystemExit(f"{path} does not exist; build the site with make docs.")
        found += sorted(path.rglob("*.html")) if path.is_dir() else [path]
    return [page.resolve() for page in found if page.name != "404.html"]


def dead_links(pages: Sequence[Path]) -> Iterator[tuple[Path, str]]:
    """Yield the internal links of pages to files or anchors that do not exist."""
    links = functools.cache(Links)
    for page in pages:
        for target in sorted(links(page).targets):
            parts = urlsplit(urljoin(page.as_uri(), target))
            if parts.scheme != "file":
                continue
            path = Path(unquote(parts.path))
            if not path.is_file():
                yield page, f"dead link: {target}"
            elif path.suffix == ".html" and unquote(parts.fragment) not in links(path).anchors:
                yield page, f"dead anchor: {target}"


def check_page(browser: Browser, page: Path, width: int) -> list[str]:
    """Return the problems of a page at a width."""
    browser.open(page.as_uri(), width)
    return [*browser.evaluate(PROBE), *(f"console: {text}" for text in browser.errors)]


def search(browser: Browser, home: Path, word: str, width: int) -> list[str]:
    """Return the titles that a site's search finds."""
    browser.open(home.as_uri(), width)
    browser.evaluate('document.querySelector("label[for=__search]").click()')
    browser.evaluate('document.querySelector("[data-md-component=search-query]").focus()')
    for letter in word:
        browser.call("Input.dispatchKeyEvent", type="keyDown", text=letter)
        browser.call("Input.dispatchKeyEvent", type="keyUp")
    titles: list[str] = browser.evaluate(RESULTS)
    return titles


def in_browser(browser: Browser, pages: Sequence[Path], word: str) -> Iterator[tuple[Path, str]]:
    """Yield the problems of pages at each width, and homes of sites whose search misses a word."""
    for page in pages:
        is_home = page.name == "index.html" and (page.parent / "search").is_dir()
        for width in WIDTHS:
            for problem in check_page(browser, page, width):
                yield page, f"{width} px: {problem}"
            if is_home and not search(browser, page, word, width):
                yield page, f"{width} px: search does not find {word}"


def generate(folder: Path) -> None:
    """Write the pages of `tacit demo` and `tacit evaluate`, of models that were trained briefly."""
    from sklearn.datasets import load_diabetes, load_wine

    def tacit(*arguments: object) -> None:
        command = [sys.executable, "-m", "tacit", *map(str, arguments)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    tacit("demo", "--epochs", 5, "--out", folder / "demo.html")
    for name, load in (("wine", load_wine), ("diabetes", load_diabetes)):
        found = load()
        table, model = folder / f"{name}.csv", folder / f"{name}.safetensors"
        with table.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow([*found.feature_names, name])
            names = found.get("target_names")
            for x, y in zip(found.data, found.target, strict=True):
                writer.writerow([*x, y if names is None else names[y]])
        tacit("train", table, "--target", name, "--epochs", 5, "--out", model)
        tacit("evaluate", model, table, "--report", folder / f"{name}.html")


def main() -> int:
    """Check the pages named on the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("paths", nargs="+", type=Path, help="HTML files, and folders of them")
    parser.add_argument("--search", default="temperature", help="a word that searches must find")
    parser.add_argument(
        "--generate", action="store_true", help="also check pages that tacit's commands write"
    )
    arguments = parser.parse_args()
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise SystemExit("Chromium is not installed (Debian: apt-get install chromium).")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        generated = Path(folder) / "generated"
        generated.mkdir()
        if arguments.generate:
            generate(generated)
        pages = pages_of([*arguments.paths, generated])
        problems = list(dead_links(pages))
        with Browser(program, str(Path(folder) / "profile")) as browser:
            problems += in_browser(browser, pages, arguments.search)
    for page, problem in problems:
        sys.stdout.write(f"{os.path.relpath(page)}: {problem}\n")
    sys.stdout.write(f"{len(pages)} pages, {len(problems)} problems\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
