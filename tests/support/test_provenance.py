import json
import platform
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tacit._support import provenance as module
from tacit._support.provenance import provenance


def git(folder, *arguments):
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Pretend that the module lies in another folder."""
    path = tmp_path / "provenance.py"
    shutil.copy(module.__file__, path)
    monkeypatch.setattr(module, "__file__", str(path))
    return path


def test_versions_are_those_in_use():
    found = provenance()
    assert found["versions"] == {"python": platform.python_version(), "torch": torch.__version__}
    assert json.dumps(found)


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_of_tracked_code(here):
    git(here.parent, "init")
    assert provenance()["commit"] is None  # in a repository, but not tracked
    git(here.parent, "add", ".")
    git(here.parent, "commit", "-m", "x")
    commit = provenance()["commit"]
    assert commit.isalnum()
    here.write_text("changed")
    assert provenance()["commit"] == f"{commit}+"


def test_no_commit_outside_a_repository(here, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(Path(here).parent.parent))
    assert provenance()["commit"] is None


def test_no_commit_without_git(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert provenance()["commit"] is None
