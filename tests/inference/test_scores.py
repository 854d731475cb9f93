import pytest
import torch
from several_inputs import Items, TwoInputs
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import tacit

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))


def make_model():
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return tacit.variational(net, {"2": tacit.LowRank(2)}, likelihood=tacit.Categorical())


def test_every_kind_of_data_gives_the_same_nll():
    a, b, labels = torch.randn(10, 4), torch.randn(10, 4), torch.arange(10) % 3
    model = tacit.variational(TwoInputs(), rank=2, likelihood=tacit.Categorical())
    with torch.no_grad():
        weights = model.sample(32, generator=torch.Generator().manual_seed(0))
        logits = model.eval()(a, b, weights=weights)
    expected = F.nll_loss(model.likelihood.predictive(logits).log_probs, labels).item()
    items = Items([{"a": a[i], "b": b[i], "labels": labels[i]} for i in range(10)])
    for data in (((a, b), labels), ({"a": a, "b": b}, labels), items):
        found = tacit.evaluate(model, data, generator=torch.Generator().manual_seed(0))
        assert found["nll"] == pytest.approx(expected, abs=1e-5)


def test_the_generator_of_a_loader_keeps_advancing():
    """Evaluating between epochs must not repeat the order of the data."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.arange(64) % 3)
    loader = DataLoader(data, 64, shuffle=True, generator=generator)
    model, orders = make_model(), []
    for _ in range(3):
        orders.append(next(iter(loader))[1])
        tacit.evaluate(model, loader, samples=2)
        tacit.predict(model, loader, samples=2)
    assert not orders[0].equal(orders[1])
    assert not orders[1].equal(orders[2])


def test_invalid_targets_are_refused():
    model = make_model()
    with pytest.raises(ValueError, match="label 3 is out of range"):
        tacit.evaluate(model, (X, torch.full((len(X),), 3)))
    with pytest.raises(TypeError, match="expected integer labels"):
        tacit.evaluate(model, (X, torch.zeros(len(X))))
    net = nn.Linear(4, 1)
    with pytest.raises(ValueError, match=r"has 1 output, .* or use likelihood=tacit.Bernoulli\(\)"):
        tacit.evaluate(net, (X, torch.ones(len(X)).long()), likelihood=tacit.Categorical())
    with pytest.raises(ValueError, match="Bernoulli: target 1.5 is out of range"):
        tacit.evaluate(net, (X, torch.full((len(X),), 1.5)), likelihood=tacit.Bernoulli())
    for data in ((X, None), [(x, "a") for x in X]):
        with pytest.raises(TypeError, match="data: expected "):
            tacit.evaluate(model, data)
    with pytest.raises(TypeError, match="data: expected a tensor of targets .* received NoneType"):
        tacit.evaluate(model, (X, None))
    with pytest.raises(TypeError, match="validation: expected a tensor of targets"):
        tacit.calibrate(model, (X, None))


def test_nan_outputs_are_refused():
    net = nn.Linear(4, 3)
    nn.init.constant_(net.weight, torch.nan)
    with pytest.raises(ValueError, match="some predictions are NaN"):
        tacit.evaluate(net, (X, torch.zeros(len(X)).long()), likelihood=tacit.Categorical())


@pytest.mark.parametrize("classes", [10, 1000])
def test_half_precision_agrees_with_double(classes):
    net = nn.Linear(4, classes).bfloat16()
    labels = torch.arange(len(X)) % classes
    found = tacit.evaluate(net, (X, labels), likelihood=tacit.Categorical())
    exact = tacit.evaluate(net.double(), (X, labels), likelihood=tacit.Categorical())
    assert found["nll"] == pytest.approx(exact["nll"], rel=0.02)


def test_several_labels_per_example_have_the_shape_of_the_positions():
    logits, labels = torch.randn(4, 6, 3), torch.randint(3, (4, 6))
    found = tacit.evaluate(nn.Identity(), (logits, labels), likelihood=tacit.Categorical())
    expected = F.cross_entropy(logits.flatten(0, 1), labels.flatten()).item()
    assert found["nll"] == pytest.approx(expected, rel=1e-5)
    square = torch.randn(4, 6, 6)
    with pytest.raises(ValueError, match=r"expected 24 labels of shape \(4, 6\), received the sha"):
        tacit.Categorical(class_dim=-1).predictive(square[None]).scores(torch.zeros(6, 4).long())
