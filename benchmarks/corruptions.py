"""Corruptions of images: time, distance from clean images, comparison with a reference.

python -m benchmarks.corruptions [--images 10000] [--reference PYTHON] [--out FOLDER] [--smoke]

Real images are downloaded if not cached. PYTHON is the interpreter of a separate environment,
created for instance by: python -m venv reference && reference/bin/pip install 'numpy<2'
scikit-image==0.20 'opencv-python-headless<4.11' imagecorruptions
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import tacit
from benchmarks.measure import save
from tacit.data.corruptions import CORRUPTIONS, FUNCTIONS, Kind, corrupt

SCRIPT = Path(__file__).with_name("reference_corruptions.py")
SHOWN = 6  # index of the image on the contact sheets

# The parameters of imagecorruptions, those of ImageNet-C, as arguments of our functions.
IMAGENET: dict[str, tuple[tuple[float, ...], ...]] = {
    "gaussian_noise": ((0.08,), (0.12,), (0.18,), (0.26,), (0.38,)),
    "shot_noise": ((60,), (25,), (12,), (5,), (3,)),
    "impulse_noise": ((0.03,), (0.06,), (0.09,), (0.17,), (0.27,)),
    "defocus_blur": ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5)),  # ours supports radii up to 8
    "glass_blur": ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    "motion_blur": ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    "zoom_blur": ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    "snow": (
        (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
        (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
        (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
        (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
        (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
    ),
    "frost": ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    "fog": ((1.5, 2, 32), (2.0, 2, 32), (2.5, 1.7, 32), (2.5, 1.5, 32), (3.0, 1.4, 32)),
    "brightness": ((0.1,), (0.2,), (0.3,), (0.4,), (0.5,)),
    "contrast": ((0.4,), (0.3,), (0.2,), (0.1,), (0.05,)),
    "elastic_transform": tuple(
        (0.005 * 250 * part, 0.01, 0.0) for part in (0.05, 0.065, 0.085, 0.1, 0.12)
    ),
    "pixelate": ((0.6,), (0.5,), (0.4,), (0.3,), (0.25,)),
    "jpeg_compression": ((25,), (18,), (15,), (10,), (7,)),
}


def statistics(images: Tensor, clean: Tensor) -> dict[str, float]:
    """Return mean and variance of images scaled to [0, 1], and their PSNR in dB."""
    x, y = images.double() / 255, clean.double() / 255
    error = (x - y).square().mean((1, 2, 3)).clamp_min(1e-8)
    return {
        "mean": x.mean().item(),
        "variance": x.var().item(),
        "psnr": (-10 * error.log10()).mean().item(),
    }


def ours(kind: Kind, clean: Tensor) -> dict[str, Any]:
    """Return statistics at each severity, and seconds per 10,000 images at the highest."""
    found: dict[str, Any] = {}
    for name in CORRUPTIONS[kind]:
        rows = [statistics(corrupt(clean, name, s, kind=kind), clean) for s in range(1, 6)]
        start = time.perf_counter()
        corrupt(clean, name, 5, kind=kind)
        seconds = (time.perf_counter() - start) * 10_000 / len(clean)
        found[name] = {"severities": rows, "seconds": seconds}
    return found


def against(python: Path, clean: Tensor) -> dict[str, Any]:
    """Return statistics of imagecorruptions, and of our functions with its parameters."""
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder, "in.npy"), Path(folder, "out.npz")
        np.save(source, clean.permute(0, 2, 3, 1).numpy())
        subprocess.run([str(python), str(SCRIPT), str(source), str(target)], check=True)
        with np.load(target) as theirs:
            arrays = {name: torch.from_numpy(theirs[name]) for name in theirs.files}
    found: dict[str, Any] = {}
    for name, severities in IMAGENET.items():
        found[name] = []
        for i, arguments in enumerate(severities):
            generator = torch.Generator().manual_seed(i)
            made = FUNCTIONS[name](clean.float() / 255, generator, *arguments).clamp(0, 1)
            other = arrays[f"{name}-{i + 1}"].permute(0, 3, 1, 2)
            found[name].append(
                {
                    "ours": statistics((made * 255 + 1e-3).floor(), clean),
                    "theirs": statistics(other, clean),
                }
            )
    return found


def contact_sheet(kind: Kind, clean: Tensor, path: Path) -> None:
    """Draw one image under each corruption at each severity."""
    from matplotlib.figure import Figure

    names = CORRUPTIONS[kind]
    figure = Figure(figsize=(6.4, len(names) * 0.8), layout="constrained")
    axes = figure.subplots(len(names), 6)
    for row, name in zip(axes, names, strict=True):
        images = [corrupt(clean, name, s, kind=kind)[SHOWN] for s in range(1, 6)]
        for axis, image in zip(row, [clean[SHOWN], *images], strict=True):
            picture = image.permute(1, 2, 0).numpy()
            axis.imshow(picture if len(image) == 3 else picture[..., 0], "gray", vmin=0, vmax=255)
            axis.set(xticks=[], yticks=[])
            axis.axis("off")
        row[0].set_title(name.replace("_", " "), fontsize=7, loc="left")
    for severity, axis in enumerate(axes[0][1:], 1):
        axis.set_title(f"severity {severity}", fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def print_reference(rows: dict[str, Any], console: Console) -> None:
    """Print both implementations side by side, at the lowest and the highest severity."""
    table = Table("corruption", "PSNR", "theirs", "mean", "theirs", "variance", "theirs")
    for name, severities in rows.items():
        for both in (severities[0], severities[-1]):
            cells = [
                f"{both[who][what]:.3g}" if what != "psnr" else f"{both[who][what]:.1f}"
                for what in ("psnr", "mean", "variance")
                for who in ("ours", "theirs")
            ]
            table.add_row(name, *cells)
    console.print(table)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--reference", type=Path)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/corruptions"))
    parser.add_argument("--smoke", action="store_true", help="a few random images")
    arguments = parser.parse_args()
    console = Console()
    results: dict[str, Any] = {}
    loaders: dict[Kind, Callable[[], tacit.data.Splits]] = {
        "cifar": tacit.data.cifar10,
        "mnist": tacit.data.mnist,
    }
    shapes: dict[Kind, tuple[int, ...]] = {"cifar": (20, 3, 32, 32), "mnist": (20, 1, 28, 28)}
    for kind, load in loaders.items():
        generator = torch.Generator().manual_seed(0)
        clean = torch.randint(0, 256, shapes[kind], generator=generator, dtype=torch.uint8)
        if not arguments.smoke:
            clean = load().test.pixels[: arguments.images]
        results[kind] = ours(kind, clean)
        total = sum(row["seconds"] for row in results[kind].values())
        console.print(f"{kind}: {total:.0f} s for 15 x 10,000 images")
        contact_sheet(kind, clean[:20], arguments.out / f"{kind}.png")
        if kind == "cifar" and arguments.reference:
            results["reference"] = against(arguments.reference, clean[:300])
            print_reference(results["reference"], console)
    save(arguments.out / "results.json", images=arguments.images, **results)


if __name__ == "__main__":
    main()
