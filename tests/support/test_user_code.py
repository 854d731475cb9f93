import sys

import pytest

from tacit._support.user_code import UserCodeError, call, load


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A current folder with some modules; what they import is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    (tmp_path / "my_good.py").write_text("make = dict\n")
    (tmp_path / "my_failing.py").write_text("1 / 0\n")
    (tmp_path / "my_unparsable.py").write_text("def\n")
    (tmp_path / "my_importing.py").write_text("import my_missing\n")
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "inner.py").write_text("make = list\n")
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def test_objects_of_the_current_folder_are_loaded(folder):
    assert load("my_good:make", "--net") is dict
    assert load("my_package.inner:make", "--net") is list
    assert load("json:loads", "--net")("1") == 1


@pytest.mark.parametrize(
    ("target", "match"),
    [
        ("my_good", "--net: expected module:name, received 'my_good'"),
        (":make", "--net: expected module:name"),
        ("my_good:", "--net: expected module:name"),
        ("my_good:other", "--net: the module 'my_good' has no 'other'"),
        ("my_missing:make", "--net: there is no module 'my_missing' here"),
        ("my_missing.inner:make", "--net: there is no module 'my_missing.inner' here"),
        ("my_good.py:make", r"no module 'my_good.py' here \(without .py: my_good:make\)"),
        ("../my_good:make", "expected the dotted name of a module .*, received '../my_good'"),
        ("my_package/inner.py:make", r"dotted name of a module \(folder/file.py is folder.file\)"),
        (".my_good:make", "expected the dotted name of a module"),
        ("my good:make", "expected the dotted name of a module"),
    ],
)
def test_names_that_dont_exist(target, match, folder):
    with pytest.raises(ValueError, match=match):
        load(target, "--net")


@pytest.mark.parametrize(
    ("module", "error"),
    [
        ("my_failing", ZeroDivisionError),
        ("my_unparsable", SyntaxError),
        ("my_importing", ModuleNotFoundError),
    ],
)
def test_errors_of_user_code_are_told_from_ours(module, error, folder):
    with pytest.raises(UserCodeError) as caught:
        load(f"{module}:make", "--net")
    assert type(caught.value.error) is error


def test_calls_of_user_code():
    assert call(divmod, 7, 2) == (3, 1)
    with pytest.raises(UserCodeError, match="by zero") as caught:
        call(divmod, 1, 0)
    assert isinstance(caught.value.error, ZeroDivisionError)
