"""How long `import tacit` takes beyond `import torch`, each time in a new process.

    python -m benchmarks.import_time

Medians over processes, on a warm file cache.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from pathlib import Path

from benchmarks.measure import save

NAMES = "import torch", "import tacit"
CODE = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import tacit
print(middle - start, time.perf_counter() - middle)
"""


def seconds() -> tuple[float, float]:
    """Return the seconds of `import torch`, and of `import tacit` after it."""
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    torch, tacit = map(float, found.stdout.split())
    return torch, tacit


def main() -> None:
    """Measure and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="one process")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/import_time.json"))
    arguments = parser.parse_args()
    seconds()  # warms the file cache
    pairs = [seconds() for _ in range(1 if arguments.smoke else 15)]
    rows = {
        name: {"seconds": statistics.median(values), "smallest": min(values)}
        for name, values in zip(NAMES, zip(*pairs, strict=True), strict=True)
    }
    for name, row in rows.items():
        print(f"{name}: {row['seconds']:.3f} s")
    save(arguments.out, rows=rows)


if __name__ == "__main__":
    main()
