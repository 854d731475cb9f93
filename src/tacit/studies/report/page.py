"""A page of text, tables and figures, as one self-contained HTML file or as Markdown.

The HTML embeds styles and pictures, and adapts to narrow screens and dark mode.
"""

from __future__ import annotations

import base64
import html
import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import quote

from tacit._support import files

STYLE = """
:root { color-scheme: light dark; --text: #1d1d22; --soft: #666; --page: #fff; --line: #ddd; }
@media (prefers-color-scheme: dark) {
  :root { --text: #e8e8ea; --soft: #a5a5ad; --page: #17171a; --line: #3a3a40; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.2rem; max-width: 56rem; background: var(--page);
  color: var(--text); font: 17px/1.55 system-ui, sans-serif; overflow-wrap: break-word; }
h1 { font-size: 1.7rem; line-height: 1.2; } h2 { font-size: 1.25rem; margin-top: 2.4rem; }
p.soft, figcaption { color: var(--soft); font-size: .92rem; }
figure { margin: 1rem 0; } figure img { width: 100%; max-width: 100%; height: auto;
  background: #fff; border-radius: 6px; padding: 6px; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; min-width: 100%;
  font-size: .86rem; }
th, td { padding: .35rem .5rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; }
th:first-child, td:first-child { text-align: left; white-space: normal; overflow-wrap: anywhere;
  min-width: 9rem; position: sticky; left: 0; background: var(--page); }
table.text th, table.text td { text-align: left; white-space: normal; vertical-align: top;
  overflow-wrap: anywhere; line-height: 1.4; }
table.text td:nth-child(2) { min-width: 14rem; }
table.text td:first-child { font-weight: 600; min-width: 6.5rem; }
table.text th { overflow-wrap: normal; }
@media (max-width: 640px) {
  table.text, table.text tbody, table.text tr, table.text td { display: block; width: 100%; }
  table.text tr:first-child { display: none; }
  table.text td:nth-child(2) { min-width: 0; }
  table.text td { border: 0; padding: .1rem 0; } table.text td:empty { display: none; }
  table.text td:not(:first-child)::before { content: attr(data-name) ": "; color: var(--soft); }
  table.text tr { border-bottom: 1px solid var(--line); padding: .6rem 0; }
}
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line); border-radius: 6px; }
"""


class Page:
    """Collects the parts of a page in order and writes them as HTML or Markdown.

    All text is shown as given: HTML and Markdown syntax in it has no effect, except that text
    between backticks is code in Markdown.

    Args:
        title: Title of the page.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[_Part] = []

    def heading(self, text: str) -> None:
        """Start a section."""
        self._parts.append(_Heading(text))

    def text(self, text: str, *, soft: bool = False) -> None:
        """Add a paragraph; `soft` sets it in smaller grey type."""
        self._parts.append(_Text(text, soft))

    def code(self, text: str) -> None:
        """Add a block of code or commands."""
        self._parts.append(_Code(text))

    def table(
        self, header: Sequence[str], rows: Sequence[Sequence[str]], *, wrap: bool = False
    ) -> None:
        """Add a table of numbers, right-aligned but for the first column, or of text.

        Args:
            header: Names of the columns.
            rows: Cells of each row.
            wrap: Whether the cells are text: left-aligned, on several lines, and stacked on narrow
                screens.
        """
        self._parts.append(_Table(header, rows, wrap))

    def figure(self, figure: Any, caption: str) -> None:
        """Add a matplotlib figure; the caption is also its alternative text."""
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=144)
        self.picture(stream.getvalue(), caption)

    def picture(self, png: bytes, caption: str, file: str | None = None) -> None:
        """Add a picture in PNG format.

        Args:
            png: Content of the PNG file.
            caption: Caption, also the alternative text.
            file: Path of an existing file relative to the page, for Markdown to link to; by default
                `write` creates one.
        """
        self._parts.append(_Figure(png, caption, file))

    def render(self) -> str:
        """Return the page as HTML."""
        title = html.escape(self.title)
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<link rel="icon" href="data:,"><title>{title}</title><style>{STYLE}</style>'
        )
        body = "\n".join(part.html() for part in self._parts)
        return (
            f'<!doctype html>\n<html lang="en"><head>{head}</head>\n'
            f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page to a file and return its path: Markdown if it ends in .md, else HTML.

        HTML embeds the pictures. Markdown links to their files; pictures without one are written
        beside the page as NAME-1.png, NAME-2.png, ...
        """
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = self._markdown(path) if path.suffix == ".md" else self.render()
        files.write_bytes(path, text.encode())
        return path

    def _markdown(self, path: Path) -> str:
        blocks = [f"# {_escaped(self.title)}"]
        pictures = 0
        for part in self._parts:
            if isinstance(part, _Figure):
                name = part.file
                if name is None:
                    pictures += 1
                    name = f"{path.stem}-{pictures}.png"
                    files.write_bytes(path.with_name(name), part.png)
                blocks.append(f"![{_escaped(part.caption)}]({quote(name)})")
            else:
                blocks.append(part.markdown())
        return "\n\n".join(blocks) + "\n"


def _escaped(text: str) -> str:
    """Return text as one line of Markdown without markup other than code between backticks.

    Entities for what Python-Markdown does not unescape after a backslash. Underscores within words
    are literal in every dialect in use.
    """
    line = html.escape(" ".join(text.split()), quote=False).replace("~", "&#126;")
    line = re.sub(r"`{3,}", _entities, line)  # would start a block of code
    return re.sub(r"[\\*\[\]]|(?<!\w)_|_(?!\w)", r"\\\g<0>", line)


def _paragraph(text: str) -> str:
    """Return text as a paragraph of Markdown, escaped if it begins like a heading, list or rule."""
    return re.sub(r"^(#|[+-](?=[\s-]|$)|\d+(?=[.)]\s))", _entities, _escaped(text))


def _cell(text: str) -> str:
    """Return text as a cell of a table in Markdown."""
    return _escaped(text).replace("|", r"\|")


def _entities(found: re.Match[str]) -> str:
    return "".join(f"&#{ord(character)};" for character in found[0])


@dataclass(frozen=True)
class _Heading:
    text: str

    def html(self) -> str:
        return f"<h2>{html.escape(self.text)}</h2>"

    def markdown(self) -> str:
        return f"## {_escaped(self.text)}"


@dataclass(frozen=True)
class _Text:
    text: str
    soft: bool

    def html(self) -> str:
        kind = ' class="soft"' if self.soft else ""
        return f"<p{kind}>{html.escape(self.text)}</p>"

    def markdown(self) -> str:
        return _paragraph(self.text)


@dataclass(frozen=True)
class _Code:
    text: str

    def html(self) -> str:
        return f"<pre><code>{html.escape(self.text)}</code></pre>"

    def markdown(self) -> str:
        longest = max((len(run) for run in re.findall("`+", self.text)), default=0)
        fence = "`" * max(3, longest + 1)
        return f"{fence}\n{self.text}\n{fence}"


@dataclass(frozen=True)
class _Table:
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    wrap: bool = False

    def html(self) -> str:
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in self.header)
        lines = [f"<tr>{cells}</tr>"]
        for row in self.rows:
            names = (
                f' data-name="{html.escape(name, quote=True)}"' if self.wrap else ""
                for name in self.header
            )
            pairs = zip(names, row, strict=True)
            cells = "".join(f"<td{name}>{html.escape(cell)}</td>" for name, cell in pairs)
            lines.append(f"<tr>{cells}</tr>")
        kind = ' class="text"' if self.wrap else ""
        return f'<div class="scroll"><table{kind}>{"".join(lines)}</table></div>'

    def markdown(self) -> str:
        rule = ["---", *("---" if self.wrap else "---:" for _ in self.header[1:])]
        header, *rows = ([_cell(text) for text in row] for row in (self.header, *self.rows))
        return "\n".join(f"| {' | '.join(line)} |" for line in (header, rule, *rows))


@dataclass(frozen=True)
class _Figure:
    png: bytes
    caption: str
    file: str | None = None

    def html(self) -> str:
        data = base64.b64encode(self.png).decode()
        alt = html.escape(self.caption, quote=True)
        return (
            f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
            f"<figcaption>{html.escape(self.caption)}</figcaption></figure>"
        )


_Part: TypeAlias = _Heading | _Text | _Code | _Table | _Figure
