import shutil

import pytest
from tiny_cells import ONE

from tacit.studies.bench import run_cells


@pytest.fixture(scope="session")
def result_of_one(tmp_path_factory):
    """The folder of the result of `ONE`, not to be changed."""
    folder = tmp_path_factory.mktemp("one")
    assert not run_cells([ONE], folder, jobs=1)
    return folder


@pytest.fixture
def finished(result_of_one, tmp_path):
    """A folder with the result of `ONE`, of the test's own."""
    return shutil.copytree(result_of_one, tmp_path / "finished")
