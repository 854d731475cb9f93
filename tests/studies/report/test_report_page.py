"""The page of `tacit demo`, rendered by headless Chromium."""

import functools
import html
import json
import os
import re
import shutil
import subprocess

import pytest
from matplotlib.figure import Figure

from tacit._support.figures import saved
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


def test_the_page_says_that_both_networks_have_a_temperature(page):
    text = page.read_text()
    assert "The temperatures of both were fitted on the same 100 further images." in text


def test_the_page_starts_with_three_sentences_on_the_results(page):
    text = page.read_text()
    summary = re.search("<p>(.*?)</p>", text)[1]
    plain, ours = re.findall(r"<td>([\d.]+)%</td>", text)
    assert f"in percent, is {ours} and {plain} (" in summary
    assert summary.count(" ± ") == 4
    assert len(re.findall(r"\.(?= |$)", summary)) == 3


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


def test_markup_in_text_has_no_effect_in_markdown(tmp_path):
    page = Page("<script>alert(1)</script> & [link](javascript:x)")
    page.heading("<h1>\n# second")
    for text in ("# no heading", "- no list", "1. no list", "--- no rule", "*a* _b_ ~~c~~ | \\"):
        page.text(text)
    page.text("snake_case stays, -0.5 too, and `code`; ``` is no block")
    page.table(["a|b", "<b>"], [["x|y", "-0.5"], ["-", "![p](http://x)"]])
    page.code("```\n<b>")
    page.picture(b"", "cap]tion", "a (1).png")
    blocks = page.write(tmp_path / "page.md").read_text().split("\n\n")
    assert blocks == [
        "# &lt;script&gt;alert(1)&lt;/script&gt; &amp; \\[link\\](javascript:x)",
        "## &lt;h1&gt; # second",
        "&#35; no heading",
        "&#45; no list",
        "&#49;. no list",
        "&#45;-- no rule",
        "\\*a\\* \\_b\\_ &#126;&#126;c&#126;&#126; | \\\\",
        "snake_case stays, -0.5 too, and `code`; &#96;&#96;&#96; is no block",
        "| a\\|b | &lt;b&gt; |\n| --- | ---: |\n| x\\|y | -0.5 |\n| - | !\\[p\\](http://x) |",
        "````\n```\n<b>\n````",
        "![cap\\]tion](a%20%281%29.png)\n",
    ]


def test_escaped_markdown_renders_as_given():
    markdown = pytest.importorskip("markdown")
    page = Page("")
    given = "<img src=x> & *a* _b_ ~c~ [d](e) f|g \\ h_i"
    page.text(given)
    page.table(["t", "u"], [[given, given]])
    text, table = (part.markdown() for part in page._parts)
    rendered = markdown.markdown(f"{text}\n\n{table}", extensions=["tables"])
    assert not re.search("<(img|em|a )", rendered)
    shown = re.findall(r"<(?:p|td[^>]*)>(.*?)</(?:p|td)>", rendered)
    assert [html.unescape(part) for part in shown] == [given] * 3


def test_links_in_a_strangers_folder_are_not_followed(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    folder = tmp_path / "results"
    folder.mkdir()
    for name in ("page.html", "page.md", "page-1.png", "figure.png"):
        (folder / name).symlink_to(precious)
    page = Page("title")
    page.picture(b"png", "caption")
    page.write(folder / "page.html")
    page.write(folder / "page.md")
    saved(Figure(), folder / "figure.png")
    assert precious.read_text() == "mine"
    assert not any(path.is_symlink() for path in folder.iterdir())


def test_a_figure_without_suffix_gets_the_default_format(tmp_path):
    saved(Figure(), tmp_path / "folder" / "figure")
    assert (tmp_path / "folder" / "figure.png").read_bytes().startswith(b"\x89PNG")
