"""Without its extra an integration says which one is needed, and tacit works."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

INTEGRATIONS = {
    "sklearn": ("sklearn", "sklearn"),
    "lightning": ("pytorch_lightning", "lightning"),
    "hugging_face": ("transformers", "hf"),
}
"""Integration -> a library that it needs, and the extra that brings it."""
OPTIONAL = {
    "lightning_fabric", "pytorch_lightning", "transformers", "huggingface_hub", "peft", "onnx",
    "onnxruntime", "sklearn",
}  # fmt: skip


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)


@pytest.mark.parametrize("name", INTEGRATIONS)
def test_without_the_extra_the_error_names_it_and_tacit_works(name):
    library, extra = INTEGRATIONS[name]
    done = run(
        f"""
import sys
sys.modules[{library!r}] = None
import tacit, torch
model = tacit.variational(torch.nn.Linear(2, 2), likelihood=tacit.Categorical())
tacit.predict(model, torch.ones(1, 2))
try:
    tacit.integrations.{name}
except ModuleNotFoundError as error:
    print(error)
"""
    )
    assert re.fullmatch(
        rf"tacit\.integrations\.{name}:? .*need.*: pip install 'tacit-torch\[{extra}\]'\n",
        done.stdout,
    ), done.stdout
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(rf"^{extra} = \[", pyproject, flags=re.MULTILINE)


def test_nothing_is_imported_unasked():
    done = run(f"import sys, tacit; tacit.integrations; print({OPTIONAL} & set(sys.modules))")
    assert done.stdout == "set()\n"


def test_the_list_of_integrations_that_need_one_is_complete():
    folder = Path(__file__).parents[2] / "src/tacit/integrations"
    found = {path.stem for path in folder.iterdir()} - {"__init__", "__pycache__", "files"}
    assert found == set(INTEGRATIONS)
