"""Include generated result pages in the documentation without copying them into docs/.

Pages link to them by their place in the repository, so that links work there too.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
# Folder of the site -> where its files are generated, and which of them to include.
SOURCES = {
    "results": (ROOT / "results", ("index.md", "*/*.png", "paper/*/*.png", "*/report.md")),
    "costs": (ROOT / "benchmarks" / "results", ("index*",)),
}


def on_files(files: Files, *, config: Any) -> Files:
    """Add the pages on claims of the paper, method comparisons and costs, with their figures."""
    for target, (folder, patterns) in SOURCES.items():
        for path in sorted(path for pattern in patterns for path in folder.glob(pattern)):
            if path.suffix != ".html":
                name = f"{target}/{path.relative_to(folder).as_posix()}"
                files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, **context: Any) -> str:
    """Turn links to the repository's folders of results into links within the site.

    On a page of docs/explanation/, `../../benchmarks/results/index.md` becomes `../costs/index.md`.
    """
    for target, (folder, _) in SOURCES.items():
        source = re.escape(folder.relative_to(ROOT).as_posix())
        markdown = re.sub(rf"\]\(((?:\.\./)*)\.\./{source}/", rf"](\1{target}/", markdown)
    return markdown
