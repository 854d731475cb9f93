"""A wrapped model has the signature of its module and the attributes that other libraries read."""

import copy
import inspect
import pickle
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import tacit
from nets import mlp
from tacit.calling import Variational
from tacit.calling.conversion import Ensemble

OWN = ["samples", "draws", "weights", "chunk_size", "generator"]


class Labelled(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.config = SimpleNamespace(use_cache=True)

    def forward(self, x, mask=None, *, labels=None, **options):
        return self.layer(x)


def test_forward_has_the_signature_of_the_module_and_keywords_of_its_own():
    model = tacit.variational(Labelled())
    expected = ["x", "mask", "labels", *OWN, "options"]
    assert list(inspect.signature(model.forward).parameters) == expected
    assert list(inspect.signature(type(model).forward).parameters) == ["self", *expected]
    parameters = inspect.signature(model.forward).parameters
    assert parameters["mask"].default is None
    assert parameters["samples"].kind is inspect.Parameter.KEYWORD_ONLY
    inspect.signature(model.forward).bind(torch.zeros(1, 4), labels=None, samples=3)
    assert model.forward.__doc__ == Variational.forward.__doc__
    networks = tacit.ensemble(model, 2)
    names = list(inspect.signature(networks.forward).parameters)
    assert names == ["x", "mask", "labels", "options"]


def test_the_class_is_a_subclass_named_after_both():
    model, networks = tacit.variational(Labelled()), tacit.ensemble(tacit.variational(Labelled()))
    assert isinstance(model, Variational)
    assert type(model).__name__ == "VariationalLabelled"
    assert isinstance(networks, Ensemble)
    assert type(networks).__name__ == "EnsembleLabelled"
    assert type(model) is type(tacit.variational(Labelled()))


@pytest.mark.parametrize("convert", [lambda m: m, lambda m: tacit.ensemble(m, 2)])
@pytest.mark.parametrize("protocol", [0, 2, pickle.HIGHEST_PROTOCOL])
def test_copies_and_pickles_keep_class_and_outputs(convert, protocol):
    model = convert(tacit.variational(Labelled()).eval())
    x = torch.randn(5, 4)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model, protocol))):
        assert type(other) is type(model)
        assert torch.equal(other(x), model(x))


def test_a_class_whose_forward_has_no_signature_stays_a_plain_wrapper():
    class Unreadable(nn.Linear):
        forward = max  # a builtin without a signature

    module = Unreadable(4, 3)
    module.forward = lambda x: nn.Linear.forward(module, x)
    model = tacit.variational(module)
    assert type(model) is Variational
    assert model(torch.zeros(2, 4)).shape == (2, 3)


def test_attributes_that_other_libraries_read_are_those_of_the_module():
    model = tacit.variational(Labelled())
    assert model.config is model.module.config
    plain = tacit.variational(mlp(4, 3))
    for name in ("config", "device", "can_generate", "gradient_checkpointing_enable"):
        assert not hasattr(plain, name)
    with pytest.raises(AttributeError, match="'VariationalSequential' object has no attribute"):
        plain.config  # noqa: B018
