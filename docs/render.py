"""Render the scripts of docs/examples as pages with their output and figures.

    python docs/render.py                # all tutorials that have changed, into docs/tutorials
    python docs/render.py tables text    # these

A script is in the percent format that editors and Jupyter know: `# %% [markdown]` starts text,
`# %%` starts code. A page shows what each cell prints, and the figures that it opens with pyplot or
gives a name, as those of `tacit.plots`; a comment `# alt:` in the cell describes its figure. A
trailing comment `# small: VALUE` replaces the value of an assignment when the tests run the script
at a small size; pages don't show it.
"""

from __future__ import annotations

import contextlib
import io
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

DOCS = Path(__file__).parent
EXAMPLES, PAGES = DOCS / "examples", DOCS / "tutorials"
SMALL = re.compile(r"^(\s*[\w, ]+ = ).*?  # small: (.+)$", re.MULTILINE)


def cells(source: str) -> Iterator[tuple[bool, str]]:
    """Yield the cells of a script: whether it is text, and its content."""
    for part in re.split(r"^# %%", source, flags=re.MULTILINE)[1:]:
        marker, _, body = part.partition("\n")
        if is_text := "[markdown]" in marker:
            body = re.sub(r"^# ?", "", body, flags=re.MULTILINE)
        yield is_text, body.strip()


def small(source: str) -> str:
    """Return a script at the size of the tests."""
    return SMALL.sub(r"\1\2", source)


def shown(code: str) -> str:
    """Return code as pages show it, without the comments that are for this program."""
    lines = re.sub(r"  # small: .+$", "", code, flags=re.MULTILINE).splitlines()
    return "\n".join(line for line in lines if not line.startswith("# alt: ")).strip()


def run(source: str, name: str) -> Iterator[tuple[bool, str, str, list[Any]]]:
    """Run a script cell by cell; yield kind, content, printed text and new figures."""
    from matplotlib import pyplot as plt
    from matplotlib.figure import Figure

    plt.switch_backend("agg")
    plt.close("all")
    module = ModuleType(name)
    sys.modules[name] = module  # where pickle looks for the classes of the script
    earlier: set[Figure] = set()
    try:
        for is_text, body in cells(source):
            printed = io.StringIO()
            if not is_text:
                with contextlib.redirect_stdout(printed):
                    exec(compile(body, f"{name}.py", "exec"), vars(module))
            opened = [plt.figure(number) for number in plt.get_fignums()]
            named = [value for value in vars(module).values() if isinstance(value, Figure)]
            figures = [each for each in dict.fromkeys(opened + named) if each not in earlier]
            earlier.update(figures)
            yield is_text, body, printed.getvalue(), figures
            plt.close("all")
    finally:
        del sys.modules[name]


def render(script: Path) -> None:
    """Write the page of a script and its figures."""
    PAGES.mkdir(exist_ok=True)
    name, start, parts, count = script.stem, time.process_time(), [], 0
    for old in PAGES.glob(f"{name}-*.png"):
        old.unlink()
    for is_text, body, printed, figures in run(script.read_text(), name):
        if is_text:
            parts.append(body)
            continue
        parts.append(f"```python3\n{shown(body)}\n```")
        if printed.strip():
            parts.append(f"```text\n{printed.rstrip()}\n```")
        described = re.findall(r"^# alt: (.+)$", body, flags=re.MULTILINE)
        for figure, alt in zip(figures, described, strict=True):
            count += 1
            figure.savefig(PAGES / f"{name}-{count}.png", dpi=120, bbox_inches="tight")
            parts.append(f"![{alt}]({name}-{count}.png)")
    parts.append(footer(script, time.process_time() - start))
    (PAGES / f"{name}.md").write_text("\n\n".join(parts) + "\n")


def footer(script: Path, seconds: float) -> str:
    """Return the last line of a page: where the script is, and the CPU time that it took."""
    source = f"[docs/examples/{script.name}](../examples/{script.name})"
    return f"The script: {source}. It took {seconds / 60:.1f} minutes of CPU time."


def is_current(script: Path) -> bool:
    """Return whether the page of a script shows its text and code, and no other."""
    page = PAGES / f"{script.stem}.md"
    if not page.exists():
        return False
    text = re.sub(r"^```text\n.*?^```\n\n", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    figure = rf"^!\[.*\]\({script.stem}-\d+\.png\)\n\n"
    text = re.sub(figure, "", text, flags=re.MULTILINE)
    parts = [
        body if is_text else f"```python3\n{shown(body)}\n```"
        for is_text, body in cells(script.read_text())
    ]
    return text.startswith("\n\n".join([*parts, "The script: "]))


def main() -> None:
    """Render the named scripts, or all whose pages are not current."""
    scripts = sorted(EXAMPLES.glob("*.py"))
    chosen = [s for s in scripts if s.stem in sys.argv[1:]]
    for script in chosen or [s for s in scripts if not is_current(s)]:
        sys.stdout.write(f"{script.name}\n")
        render(script)


if __name__ == "__main__":
    main()
