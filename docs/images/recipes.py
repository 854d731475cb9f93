"""Draw the flow chart of docs/how-to/choose-a-recipe.md.

    python docs/images/recipes.py    # writes docs/images/recipes.svg

Narrow enough for a phone. Boxes have their own colours, so the chart is readable on light and on
dark pages alike.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

PATH = Path(__file__).with_suffix(".svg")

STEPS = [
    ("Data", ["Is the network trained, and will inputs", "be like its training data?"],
     ["Temperature only"]),
    ("Data", ["Are the targets real numbers?"],
     ["The default, with", "HeteroscedasticStudentT()"]),
    ("Network", ["Do you fine-tune a pretrained", "transformer?"],
     ["Adapters"]),
    ("Budget", ["Can you afford five trainings, and", "five networks in use?"],
     ["Ensemble of five"]),
    ("Network", ["Does the plain network underfit:", "is its training loss high?"],
     ["Temperature only"]),
    ("Data", ["Will inputs be corrupted, and", "can you tune a rate?"],
     ["Dropout, rate .1 or .2"]),
]  # fmt: skip
LAST = ["The default: relative noise"]

WIDTH, MARGIN, LINE, PADDING = 358, 2, 20, 12
RECIPE_X, SPINE_X, GAP = 96, 40, 30
QUESTION, RECIPE, DEFAULT, PILL, STROKE = "#37474f", "#00695c", "#1a56a8", "#5b6770", "#8a949b"


def box(x: float, y: float, lines: list[str], fill: str, tag: str = "") -> tuple[str, float]:
    """Return a box with lines of text that reaches to the right margin, and its lower edge."""
    height = 2 * PADDING + LINE * len(lines) + (LINE if tag else 0)
    width = WIDTH - MARGIN - x
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" fill="{fill}" '
        f'stroke="{STROKE}"/>'
    ]
    baseline = y + PADDING + 15
    if tag:
        parts.append(f'<text x="{x + 14}" y="{baseline - 2}" class="tag">{escape(tag)}</text>')
        baseline += LINE
    for i, line in enumerate(lines):
        parts.append(f'<text x="{x + 14}" y="{baseline + LINE * i}">{escape(line)}</text>')
    return "\n".join(parts), y + height


def arrow(x: float, start: float, end: float, label: str, middle: float) -> str:
    """Return an arrow down, with a label on it."""
    return (
        f'<path d="M{x} {start} V{end - 4}" class="line" marker-end="url(#head)"/>\n'
        f'<rect x="{x - 17}" y="{middle - 10}" width="34" height="20" rx="10" fill="{PILL}"/>\n'
        f'<text x="{x}" y="{middle + 5}" class="label">{label}</text>'
    )


def draw() -> str:
    """Return the chart as SVG."""
    parts, y = [], float(MARGIN)
    for tag, question, recipe in STEPS:
        drawn, low = box(MARGIN, y, question, QUESTION, tag)
        answer, end = box(RECIPE_X, low + GAP, recipe, RECIPE)
        y = end + GAP / 2
        parts += [
            drawn,
            answer,
            arrow(RECIPE_X + 40, low, low + GAP, "yes", low + GAP / 2 - 2),
            arrow(SPINE_X, low, y, "no", (low + GAP + end) / 2),
        ]
    drawn, end = box(MARGIN, y, LAST, DEFAULT)
    parts.append(drawn)
    height = end + MARGIN
    return f"""<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height:g}" \
viewBox="0 0 {WIDTH} {height:g}" role="img">
<title>Which recipe?</title>
<style>
text {{ font: 15px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif; fill: #fff; }}
.tag {{ font-size: 12px; fill: #b3c5ce; }}
.label {{ font-size: 13px; text-anchor: middle; }}
.line {{ stroke: {STROKE}; stroke-width: 2; fill: none; }}
</style>
<defs><marker id="head" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="5" markerHeight="5" \
orient="auto"><path d="M0 0L8 4L0 8z" fill="{STROKE}"/></marker></defs>
{chr(10).join(parts)}
</svg>
"""


if __name__ == "__main__":
    PATH.write_text(draw())
