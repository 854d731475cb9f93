"""The layers of the code: imports go down only."""

import ast
from pathlib import Path

import pytest

import tacit

# Each row may import from the rows above it, and from itself only within one package.
LAYERS = [
    ["_checks", "_console", "_files", "_load", "_names", "_provenance", "_tree"],
    ["covariance", "noise", "parametrization", "metrics", "data", "models", "theory"],
    ["predictive"],
    ["likelihood", "plots"],
    ["pairs"],
    ["batches"],
    ["distribution", "functional", "selection", "coasting"],
    ["folding", "directions"],
    ["lazy"],
    ["groups", "watched"],
    ["variational"],
    ["conversion", "divergence", "moments", "saving", "scaling", "sgd"],
    ["objective"],
    ["predictor"],
    ["optimizers", "prediction"],
    ["calibration", "diagnosis", "training"],
    ["coordinate_check", "methods", "transfer"],
    ["report"],
    ["testing", "demo", "bench"],
    ["experiments"],
    ["cli"],
    ["__main__"],
]
HEIGHT = {name: height for height, row in enumerate(LAYERS) for name in row}
ROOT = Path(tacit.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def part(path):
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported(tree):
    """Yield the parts of tacit that a file imports, wherever in the file it does."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield "a relative import"
        elif isinstance(node, ast.ImportFrom) and node.module == "tacit":
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tacit."):
            yield node.module.split(".")[1]
        elif isinstance(node, ast.Import):
            names = (alias.name.split(".") for alias in node.names)
            yield from (".".join(name[1:2]) or "tacit" for name in names if name[0] == "tacit")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_down_only(path):
    own = part(path)
    assert own in HEIGHT, f"{own} has no layer yet: give it one above"
    for other in imported(ast.parse(path.read_text())):
        allowed = other == own or HEIGHT.get(other, len(LAYERS)) < HEIGHT[own]
        assert allowed, f"{own} imports {other}"


def test_the_check_sees_every_form_of_import():
    source = """
from tacit import noise
from tacit.covariance.low_rank import LowRank
import tacit.variational
import tacit
def late():
    from tacit.groups import batch_size
from . import sibling
"""
    assert list(imported(ast.parse(source))) == [
        "noise", "covariance", "variational", "tacit", "a relative import", "groups",
    ]  # fmt: skip


def test_theory_shares_no_code_with_the_rest():
    for path in FILES:
        if part(path) == "theory":
            assert set(imported(ast.parse(path.read_text()))) <= {"theory"}, path


def test_public_names():
    assert all(getattr(tacit, name) is not None for name in tacit.__all__)
