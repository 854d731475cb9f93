"""The house: few rooms, imports in one direction, no cycles, private torch in one file."""

import ast
import importlib
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import tacit

# A room imports only itself and rooms above it. Top-level files import any room.
ROOMS = [
    "_support",
    "theory",
    "metrics",
    "data",
    "models",
    "likelihood",
    "weights",
    "scaling",
    "calling",
    "inference",
    "training",
    "methods",
    "integrations",
    "studies",
    "testing",
    "cli",
]
MOST_ROOMS = 16
PRIVATE_TORCH = "_support/private_torch.py"
SHARED_BY_METHODS = {"by_name", "base", "learned", "network_cache", "saving", "task"}

ROOT = Path(tacit.__file__).parent
FILES = sorted(path for path in ROOT.rglob("*.py") if path.parent != ROOT)
MODULES = {
    ".".join(["tacit", *path.relative_to(ROOT).with_suffix("").parts]).removesuffix(
        ".__init__"
    ): path
    for path in FILES
}


def name_of(path):
    return str(path.relative_to(ROOT))


def imports(source):
    """Yield the dotted names of tacit that a file imports, wherever in the file it does."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and node.level:
            yield "a relative import"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tacit":
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else node.module
        elif isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] == "tacit")


def imports_of(path):
    return list(imports(path.read_text()))


def room_of(module):
    return module.split(".")[1] if "." in module else module


def test_rooms_are_few_and_all_in_the_list():
    found = {p.name for p in ROOT.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert found == set(ROOMS)
    assert len(ROOMS) <= MOST_ROOMS
    assert {p.name for p in ROOT.iterdir() if p.is_file()} == {
        "__init__.py", "__main__.py", "py.typed",
    }  # fmt: skip


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_imports_go_in_one_direction(path):
    own = ROOMS.index(path.relative_to(ROOT).parts[0])
    for module in imports_of(path):
        room = room_of(module)
        assert room in ROOMS, f"{name_of(path)} imports {module}: name the room"
        assert ROOMS.index(room) <= own, f"{name_of(path)} imports {module}"


def test_theory_shares_no_code_with_the_rest():
    for path in (ROOT / "theory").glob("*.py"):
        assert {room_of(module) for module in imports_of(path)} <= {"theory"}, path


def test_no_cycle_among_modules():
    graph = {module: set(imports_of(path)) & MODULES.keys() for module, path in MODULES.items()}
    for module, others in graph.items():
        # A package's __init__ runs before its modules: importing it from within is a cycle.
        if MODULES[module].name != "__init__.py":
            assert module.rpartition(".")[0] not in others, f"{module} imports its own package"
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"a cycle: {' <- '.join(error.args[1])}")


def test_methods_never_import_each_other():
    folder = ROOT / "methods"
    names = {path.stem for path in folder.glob("*.py")} - SHARED_BY_METHODS - {"__init__"}
    for name in names:
        found = {
            module.split(".")[2]
            for module in imports_of(folder / f"{name}.py")
            if module.startswith("tacit.methods.")
        }
        assert found <= SHARED_BY_METHODS, f"methods/{name}.py imports {found - SHARED_BY_METHODS}"


PRIVATE = re.compile(
    r"torch\.(\w+\.)*_[a-zA-Z]"  # torch._C, torch.utils._pytree
    r"|from torch[\w.]*\._\w+ import|from torch[\w.]* import .*\b_[a-zA-Z]"
    r"|\._version\b|\b_init_group\b|\._cdata\b|\._backward_hooks\b|\._post_accumulate_grad_hooks\b"
)


def test_private_torch_is_in_one_file():
    users = {name_of(path) for path in FILES if PRIVATE.search(path.read_text())}
    assert users == {PRIVATE_TORCH}


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("torch._C._storage_Use_Count(x)", True),
        ("from torch.utils._pytree import tree_map", True),
        ("from torch.nn.modules.dropout import _DropoutNd", True),
        ("parameter._version", True),
        ("owner._parameters.get(name)", False),  # what nn.Module's own documentation names
        ("torch.nn.functional.linear(x, w)", False),
    ],
)
def test_the_check_for_private_torch_sees_it(line, private):
    assert bool(PRIVATE.search(line)) is private


def test_the_check_sees_every_form_of_import():
    source = """
from tacit.weights import noise
from tacit.weights.covariance.low_rank import LowRank
import tacit.calling.model
import tacit
def late():
    from tacit.calling.draws import batch_size
from . import sibling
"""
    assert list(imports(source)) == [
        "tacit.weights.noise",
        "tacit.weights.covariance.low_rank",
        "tacit.calling.model",
        "tacit",
        "a relative import",
        "tacit.calling.draws",
    ]


@pytest.mark.parametrize("module", MODULES)
def test_no_name_hides_a_module(module):
    """`tacit.a.b` by attribute is the module: no function of the same name stands in its place."""
    imported = importlib.import_module(module)
    found = tacit
    for part in module.split(".")[1:]:
        found = getattr(found, part)
    assert found is imported


PAGES = sorted((Path(__file__).parents[1] / "docs/api").glob("*.md"))
DOCUMENTED = [
    path for page in PAGES for path in re.findall(r"^::: (\S+)$", page.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("path", DOCUMENTED)
def test_documented_paths_resolve_by_attribute(path):
    code = f"import tacit; assert {path} is not None"
    exec(code, {})


def test_importing_leaves_torch_as_it_was():
    code = """
import torch
from torch.optim import optimizer
hooks = lambda: (
    len(optimizer._global_optimizer_pre_hooks), len(optimizer._global_optimizer_post_hooks),
    len(torch.nn.modules.module._global_forward_hooks),
    len(torch.nn.modules.module._global_forward_pre_hooks),
    len(torch.nn.modules.module._global_module_registration_hooks),
)
state = hooks(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
import tacit
for name in tacit.__all__:
    getattr(tacit, name)
assert state == (
    hooks(), torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
)
"""
    subprocess.run([sys.executable, "-c", code], check=True)
