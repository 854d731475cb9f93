"""pandas' tables and columns in `fit`, `predict` and `evaluate`: used, or refused with a reason."""

import numpy as np
import pandas as pd
import pytest
import torch

import tacit
from tacit.data.batches import Batches, as_tensor

NUMBERS = pd.DataFrame({"a": np.linspace(-1, 1, 40), "b": np.arange(40) % 7})
LABELS = pd.Series(np.arange(40) % 2)


def model():
    return tacit.variational(tacit.models.MLP(2, [4], 2), likelihood=tacit.Categorical())


def test_numbers_are_used_as_they_are():
    own = model()
    tacit.fit(own, (NUMBERS, LABELS), epochs=1, standardise=True, progress=False)
    assert len(tacit.predict(own, NUMBERS)) == 40
    assert "accuracy" in tacit.evaluate(own, (NUMBERS, LABELS))


@pytest.mark.parametrize("kind", ["bool", "boolean", "Int64", "float32"])
def test_numbers_and_truth_values_of_any_type(kind):
    frame = NUMBERS.assign(b=(NUMBERS.b > 3).astype(kind))
    found = as_tensor("x", frame)
    expected = np.column_stack([NUMBERS.a, NUMBERS.b > 3])
    np.testing.assert_allclose(found.numpy(), expected)


@pytest.mark.parametrize(
    ("column", "name"),
    [
        (["x", "y"] * 20, "c"),
        (pd.Categorical(["x", "y"] * 20), "c"),
        (pd.date_range("2024-01-01", periods=40), "c"),
    ],
    ids=["text", "category", "date"],
)
def test_other_columns_are_named(column, name):
    frame = NUMBERS.assign(**{name: column})
    for call in (
        lambda: tacit.fit(model(), (frame, LABELS), epochs=1),
        lambda: tacit.predict(model(), frame),
        lambda: tacit.evaluate(model(), (frame, LABELS)),
    ):
        with pytest.raises(TypeError, match=r"DataFrame with text, .* in c\. .*TableEncoder"):
            call()


def test_a_table_of_dates_alone_is_explained():
    frame = pd.DataFrame({"day": pd.date_range("2024-01-01", periods=3)})
    with pytest.raises(TypeError, match=r"dates or mixed values in day\."):
        as_tensor("inputs", frame)


def test_text_labels_are_explained():
    labels = LABELS.map({0: "no", 1: "yes"})
    with pytest.raises(TypeError, match=r"received Series with text.*np.unique\(labels"):
        tacit.fit(model(), (NUMBERS, labels), epochs=1)


@pytest.mark.parametrize("kind", ["float64", "Float64"])
def test_missing_values_are_explained(kind):
    frame = NUMBERS.astype({"a": kind})
    frame.loc[3, "a"] = None
    with pytest.raises(ValueError, match=r"not finite .*TableEncoder encodes tables with missing"):
        Batches("train", (frame, LABELS), 8)


def test_a_table_without_targets_is_explained():
    with pytest.raises(TypeError, match=r"received DataFrame\. Separate inputs and target: \(x, y"):
        tacit.fit(model(), NUMBERS, epochs=1)


def test_another_number_of_columns_is_refused():
    own = model()
    tacit.fit(own, (NUMBERS, LABELS), epochs=1, standardise=True, progress=False)
    for frame in (NUMBERS[["a"]], NUMBERS.assign(c=1.0)):
        with pytest.raises(ValueError, match="expected 2 columns, as in training, received"):
            tacit.predict(own, frame)
    with pytest.raises(ValueError, match="expected 2 columns"):
        tacit.models.Standardise(torch.zeros(2), torch.ones(2))(torch.zeros(5, 1))


def test_columns_that_are_not_writable_are_used_without_a_warning():
    array = np.arange(6.0).reshape(3, 2)
    array.flags.writeable = False
    assert as_tensor("x", array).tolist() == array.tolist()
