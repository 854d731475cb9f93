"""A page that is one file: styles inside, pictures inside, readable on a phone and in the dark."""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
.scroll { overflow-x: auto; } table { border-collapse: collapse; min-width: 100%; }
th, td { padding: .35rem .7rem; border-bottom: 1px solid var(--line); text-align: right;
  white-space: nowrap; } th:first-child, td:first-child { text-align: left; }
pre { overflow-x: auto; padding: .8rem; border: 1px solid var(--line); border-radius: 6px; }
"""


class Page:
    """Collects the parts of a page in order.

    Args:
        title: Title of the page.
    """

    def __init__(self, title: str) -> None:
        self.title = title
        self._parts: list[str] = []

    def heading(self, text: str) -> None:
        """Begin a section."""
        self._parts.append(f"<h2>{html.escape(text)}</h2>")

    def text(self, text: str, *, soft: bool = False) -> None:
        """Add a paragraph."""
        kind = ' class="soft"' if soft else ""
        self._parts.append(f"<p{kind}>{html.escape(text)}</p>")

    def code(self, text: str) -> None:
        """Add code or commands."""
        self._parts.append(f"<pre><code>{html.escape(text)}</code></pre>")

    def table(self, header: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Add a table; the first column holds names, the others numbers."""
        cells = "".join(f"<th>{html.escape(name)}</th>" for name in header)
        lines = [f"<tr>{cells}</tr>"]
        for row in rows:
            cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in row)
            lines.append(f"<tr>{cells}</tr>")
        self._parts.append(f'<div class="scroll"><table>{"".join(lines)}</table></div>')

    def figure(self, figure: Any, caption: str) -> None:
        """Add a matplotlib figure; the caption is also what a screen reader says."""
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=144)
        data = base64.b64encode(stream.getvalue()).decode()
        alt = html.escape(caption, quote=True)
        self._parts.append(
            f'<figure><img alt="{alt}" src="data:image/png;base64,{data}">'
            f"<figcaption>{html.escape(caption)}</figcaption></figure>"
        )

    def render(self) -> str:
        """Return the page as HTML."""
        title = html.escape(self.title)
        head = (
            '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<link rel="icon" href="data:,"><title>{title}</title><style>{STYLE}</style>'
        )
        body = "\n".join(self._parts)
        return (
            f'<!doctype html>\n<html lang="en"><head>{head}</head>\n'
            f"<body><h1>{title}</h1>\n{body}\n</body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page to a file."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.render(), encoding="utf-8")
        return path
