"""Draw the README's picture: functions sampled from the model of its second code block."""

from pathlib import Path
from typing import Any

import torch
from matplotlib import pyplot as plt
from PIL import Image

README = Path(__file__).parents[2] / "README.md"
FUNCTIONS, DATA, DATA_TEXT = "#2b6cb0", "#dd6b20", "#b84a0f"

# The picture shows what the code of the README trains: it is run as it stands there.
names: dict[str, Any] = {}
code = README.read_text().split("```python\n")[2].split("```")[0]
exec(compile(code, README.name, "exec"), names)

grid = torch.linspace(-2.7, 2.7, 541)
with torch.no_grad():
    sampled = names["model"](grid[:, None], samples=40, generator=torch.Generator().manual_seed(0))

plt.switch_backend("agg")
plt.rcParams.update({"font.size": 23, "text.color": FUNCTIONS})
figure, axis = plt.subplots(figsize=(10, 4.7))
figure.subplots_adjust(0, 0, 1, 1)
axis.axvspan(-1, 1, color=DATA, alpha=0.08, linewidth=0)
axis.plot(grid, sampled[..., 0].T, color=FUNCTIONS, linewidth=1.2, alpha=0.5)
axis.plot(
    names["x"], names["y"], "o", color=DATA, markersize=7.5, markeredgecolor="white",
    markeredgewidth=0.8, zorder=3,
)  # fmt: skip
axis.text(
    0, 3.2, "eighty\nobservations:\nfunctions agree", color=DATA_TEXT, ha="center", va="center"
)
axis.text(1.85, 3.2, "no data:\nthey part", ha="center", va="center")
axis.text(-1.85, -2.6, "no data:\nthey part", ha="center", va="center")
axis.set(xlim=(-2.7, 2.7), ylim=(-5.2, 5.6))
axis.axis("off")
path = Path(__file__).with_suffix(".png")
figure.savefig(path, dpi=140, facecolor="white")
image = Image.open(path).convert("RGB").quantize(128, Image.Quantize.MAXCOVERAGE)
image.save(path, optimize=True)  # a palette: a quarter of the size
