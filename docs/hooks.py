"""Pages of the documentation that are results: taken from where they are written."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

RESULTS = Path(__file__).parents[1] / "results"


def on_files(files: Files, *, config: Any) -> Files:
    """Add the page of the paper's claims and that of the comparison, with their pictures."""
    for pattern in ("index.md", "*/*.png", "bench*/report.md"):
        for path in sorted(RESULTS.glob(pattern)):
            place = f"results/{path.relative_to(RESULTS).as_posix()}"
            files.append(File.generated(config, place, abs_src_path=str(path)))
    return files
