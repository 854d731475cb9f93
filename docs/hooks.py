"""Pages of the documentation that are results: taken from where they are written."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PLACES = {
    "results": (ROOT / "results", ("index.md", "*/*.png", "bench*/report.md")),
    "costs": (ROOT / "benchmarks" / "results", ("index*",)),
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages of the paper's claims, of the comparisons and of costs, with their pictures."""
    for place, (folder, patterns) in PLACES.items():
        for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
            if path.suffix != ".html":
                name = f"{place}/{path.relative_to(folder).as_posix()}"
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
