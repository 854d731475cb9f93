"""The page of `tacit demo`, rendered by headless Chromium."""

import functools
import json
import os
import re
import shutil
import subprocess

import pytest
from matplotlib.figure import Figure

from tacit.studies import demo
from tacit.studies.report import Page

PROBE = """
<script>
window.addEventListener("error", (e) => document.body.dataset.errors = e.message);
window.addEventListener("load", () => {
  const pictures = [...document.images].map((p) => [p.naturalWidth, p.clientWidth]);
  const facts = {
    pictures,
    overflow: document.documentElement.scrollWidth - window.innerWidth,
    width: window.innerWidth,
    background: getComputedStyle(document.body).backgroundColor,
    text: getComputedStyle(document.body).color,
    size: getComputedStyle(document.body).fontSize,
  };
  document.body.setAttribute("data-facts", JSON.stringify(facts));
});
</script>
"""


@functools.cache
def browser():
    """Return the path of Chromium, installed from Debian if possible; None if there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    if shutil.which("apt-get") and os.geteuid() == 0:
        install = ["apt-get", "install", "-y", "--no-install-recommends", "chromium"]
        subprocess.run(install, capture_output=True, timeout=240, check=False)
    return shutil.which("chromium")


@functools.cache
def demo_page(folder):
    path = folder / "demo.html"
    demo.main(path, epochs=2)
    return path


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return demo_page(tmp_path_factory.mktemp("page"))


def measure(page, width, *flags):
    """Open the page from the file system, without network access; return what PROBE measured."""
    if browser() is None:
        pytest.skip("Chromium is not installed and could not be installed")
    probed = page.with_name("probed.html")
    probed.write_text(page.read_text().replace("</body>", f"{PROBE}</body>"))
    done = subprocess.run(
        [
            browser(), "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom",
            "--enable-logging=stderr", "--virtual-time-budget=5000", "--hide-scrollbars",
            "--proxy-server=127.0.0.1:9", f"--window-size={width},2000", *flags, probed.as_uri(),
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    found = re.search(r'data-facts="([^"]*)"', done.stdout)
    assert found, done.stderr[-2000:]
    assert "data-errors" not in done.stdout
    assert not re.search(r"CONSOLE.*(error|refused)", done.stderr, flags=re.IGNORECASE)
    return json.loads(found[1].replace("&quot;", '"'))


@pytest.mark.slow
def test_all_pictures_are_visible(page):
    facts = measure(page, 1200)
    assert len(facts["pictures"]) == 6
    assert all(natural > 300 and shown > 300 for natural, shown in facts["pictures"])
    assert facts["overflow"] <= 0


@pytest.mark.slow
def test_nothing_overflows_on_a_phone(page):
    facts = measure(page, 500)  # the narrowest window that Chromium opens
    assert facts["overflow"] <= 0
    assert all(200 < shown <= facts["width"] for _, shown in facts["pictures"])
    assert float(facts["size"].removesuffix("px")) >= 16


@pytest.mark.slow
def test_dark_mode_inverts_the_brightness(page):
    light = measure(page, 1200)
    dark = measure(page, 1200, "--force-dark-mode", "--blink-settings=preferredColorScheme=0")

    def brightness(color):
        return sum(map(int, re.findall(r"\d+", color)[:3]))

    assert brightness(light["background"]) > brightness(light["text"])
    assert brightness(dark["background"]) < brightness(dark["text"])


def test_the_page_is_self_contained(page):
    text = page.read_text()
    assert not re.search(r"(src|href)=\"(?!data:)", text)
    assert "http" not in text
    assert text.count("<img alt=") == 6


def test_text_is_escaped(tmp_path):
    page = Page("a < b")
    page.text("<script>alert(1)</script>")
    page.table(["x", "y&z"], [["<b>", "1"]])
    page.code("if a < b: pass")
    page.figure(Figure(), 'caption with "quotes"')
    text = page.write(tmp_path / "folder" / "page.html").read_text()
    assert "<script>" not in text
    assert "&lt;b&gt;" in text
    assert "y&amp;z" in text
    assert 'alt="caption with &quot;quotes&quot;"' in text
