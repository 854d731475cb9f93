r"""Peak memory of `tacit train` and `tacit predict` for tables of 100,000 and more rows.

    python -m benchmarks.table_memory            # 100,000 and 1,000,000 rows, CSV
    python -m benchmarks.table_memory --rows 20000 --format parquet --out /tmp/memory.json

Each command runs in a process of its own, training for one epoch. Its memory is sampled in /proc:
`own` is the most that the process held itself (RssAnon), `total` includes files that it maps, which
the system can drop at any time (RSS). Linux only.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from tacit._support.provenance import provenance

RESULTS = Path(__file__).parent / "results" / "table_memory.json"
ROWS = (100_000, 1_000_000)
BLOCK = 50_000
HEADER = ("age", "income", "height", "score", "visits", "balance", "city", "plan", "since", "kind")


def write_table(path: Path, count: int) -> None:
    """Write rows with six columns of numbers, one of them with gaps, two of texts, and a date."""
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(HEADER)
        for start in range(0, count, BLOCK):
            rows.writerows(_rows(rng, min(BLOCK, count - start)))


def _rows(rng: np.random.Generator, count: int) -> list[list[Any]]:
    numbers = np.round(rng.normal(size=(count, 6)) * [12, 900, 9, 1, 3, 1e4], 3)
    city, plan = rng.integers(20, size=count), rng.integers(5, size=count)
    days = np.datetime64("2020-01-01") + rng.integers(2000, size=count)
    noise = rng.normal(size=count)
    kind = np.digitize(numbers[:, 0] / 12 + (city % 3) - 1 + noise / 2, [-1, 1])
    gaps = rng.random(count) < 0.05
    return [
        [*row[:5], "" if gap else row[5], f"city{c}", f"plan{p}", day, f"kind{k}"]
        for row, gap, c, p, day, k in zip(
            numbers.tolist(), gaps, city, plan, days.astype(str), kind, strict=True
        )
    ]


def as_parquet(path: Path) -> Path:
    """Return a Parquet file with the rows of a CSV."""
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    found = path.with_suffix(".parquet")
    with arrow_csv.open_csv(path) as batches, parquet.ParquetWriter(found, batches.schema) as out:
        for batch in batches:
            out.write_batch(batch)
    return found


def measure(*arguments: object) -> dict[str, float]:
    """Run a command of tacit and return its peak memory in MB, and its CPU time in seconds."""
    command = [sys.executable, "-m", "tacit", *map(str, arguments)]
    own = total = seconds = 0.0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        while process.poll() is None:
            found = _status(process.pid)
            own, total = max(own, found.get("RssAnon", 0.0)), max(total, found.get("VmHWM", 0.0))
            seconds = max(seconds, _cpu_seconds(process.pid))
            time.sleep(0.05)
        printed = process.stdout.read().decode() if process.stdout else ""
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{printed}")
    return {"own": round(own), "total": round(total), "cpu_seconds": round(seconds)}


def _status(pid: int) -> dict[str, float]:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split() for line in lines)
    return {p[0].rstrip(":"): int(p[1]) / 1024 for p in pairs if len(p) == 3 and p[2] == "kB"}


def _cpu_seconds(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / 100


def run(count: int, kind: str) -> dict[str, Any]:
    """Return the peak memory of each command for a number of rows."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data, model = folder / "data.csv", folder / "model.safetensors"
        write_table(data, count)
        data = as_parquet(data) if kind == "parquet" else data
        size = round(data.stat().st_size / 2**20)
        train = measure("train", data, "--target", "kind", "--epochs", 1, "--out", model)
        predict = measure("predict", model, data, "--out", folder / "predictions.csv")
    found = {"train": train, "predict": predict}
    return {"rows": count, "format": kind, "file_mb": size, **found, **provenance()}


def main() -> None:
    """Measure, and write the results as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=list(ROWS))
    parser.add_argument("--format", choices=("csv", "parquet"), default="csv")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    done = json.loads(arguments.out.read_text()) if arguments.out.exists() else []
    for count in arguments.rows:
        found = run(count, arguments.format)
        print(json.dumps(found), flush=True)
        done = [r for r in done if (r["rows"], r["format"]) != (count, arguments.format)]
        done.append(found)
        arguments.out.write_text(json.dumps(done, indent=1) + "\n")


if __name__ == "__main__":
    main()
