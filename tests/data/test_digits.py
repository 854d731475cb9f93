import sys

import pytest

from tacit.data import digits


def test_the_split_is_fixed():
    train, validation, test = digits()
    assert train[0].shape == (900, 64)
    assert validation[0].shape == (100, 64)
    assert test[0].shape == (797, 64)
    assert test[1].unique().tolist() == list(range(10))
    assert train[0].min() == 0
    assert train[0].max() == 1
    assert digits().train[0].equal(train[0])


def test_the_error_without_scikit_learn_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tacit-torch\[sklearn\]'"):
        digits()
