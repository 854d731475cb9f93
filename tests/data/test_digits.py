import sys

import pytest

from tacit.data import digits


def test_the_split_is_fixed():
    (x, y), (x_test, y_test) = digits()
    assert x.shape == (1000, 64)
    assert x_test.shape == (797, 64)
    assert y.shape == (1000,)
    assert y_test.unique().tolist() == list(range(10))
    assert x.min() == 0
    assert x.max() == 1
    assert digits()[0][0].equal(x)


def test_without_scikit_learn_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'tacit-torch\[sklearn\]'"):
        digits()
