import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit

X = torch.randn(10, 4, generator=torch.Generator().manual_seed(0))


def make_model(likelihood=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    return tacit.variational(net, {"3": tacit.LowRank(2)}, likelihood=likelihood)


def seeded():
    return torch.Generator().manual_seed(1)


def test_is_the_likelihood_s_prediction_of_sampled_functions():
    model = make_model(tacit.Categorical())
    found = tacit.predict(model, X, samples=6, generator=seeded())
    assert model.training  # as it was, although predictions are made in eval mode
    with torch.no_grad():
        outputs = model.eval()(X, samples=6, generator=seeded())
    assert_close(found.logits, outputs)


@pytest.mark.parametrize("batch_size", [1, 3, 10])
def test_all_batches_see_the_same_functions(batch_size):
    model = make_model(tacit.Categorical())
    expected = tacit.predict(model, X, generator=seeded()).logits
    found = tacit.predict(model, X, generator=seeded(), batch_size=batch_size, chunk_size=5).logits
    assert_close(found, expected)


@pytest.mark.parametrize(
    "inputs",
    [
        X.numpy(),
        DataLoader(TensorDataset(X, torch.zeros(10)), batch_size=4),
        DataLoader(X, batch_size=4),
    ],
    ids=["array", "loader of pairs", "loader of inputs"],
)
def test_other_inputs(inputs):
    model = make_model(tacit.Categorical())
    expected = tacit.predict(model, X, generator=seeded()).logits
    assert_close(tacit.predict(model, inputs, generator=seeded()).logits, expected)


def test_a_plain_network_is_one_function():
    net = nn.Linear(4, 3)
    found = tacit.predict(net, X, likelihood=tacit.Categorical())
    assert found.logits.shape == (1, 10, 3)
    assert_close(found.logits[0], net(X).detach())


def test_averaging():
    model = make_model(tacit.Categorical())
    by_name = {
        name: tacit.predict(model, X, averaging=name, generator=seeded()).probs
        for name in ("log_probs", "probs", "logits")
    }
    assert_close(by_name["log_probs"], tacit.predict(model, X, generator=seeded()).probs)
    assert not torch.allclose(by_name["probs"], by_name["logits"])
    with pytest.raises(ValueError, match="averaging: expected log_probs, probs, logits"):
        tacit.predict(model, X, averaging="mean")
    with pytest.raises(ValueError, match="averaging is for probabilities"):
        tacit.predict(make_model(tacit.Gaussian()), X, averaging="probs")


def test_bad_input():
    model = make_model()
    with pytest.raises(ValueError, match="likelihood: the model has none; pass likelihood="):
        tacit.predict(model, X)
    for bad, error, match in (
        ([1, 2, 3], TypeError, "expected a tensor or array, .*; received list of length 3"),
        ("x", TypeError, "expected a tensor or array, .*; received str"),
        (X[:0], ValueError, "there are no examples"),
    ):
        with pytest.raises(error, match=match):
            tacit.predict(model, bad, likelihood=tacit.Categorical())
    with pytest.raises(ValueError, match="samples: expected an integer"):
        tacit.predict(model, X, samples=0, likelihood=tacit.Categorical())
    with pytest.raises(
        TypeError, match="model: expected a tensor, or one in .logits, as output; received tuple"
    ):
        tacit.predict(nn.LSTM(4, 3), X[None], likelihood=tacit.Gaussian())


class TwoInputs(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(4, 3)

    def forward(self, a, b):
        return self.second(b) + self.first(a)[..., :3]


class Items(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]


def test_every_kind_of_input_gives_the_same_prediction():
    torch.manual_seed(0)
    a, b, labels = torch.randn(10, 4), torch.randn(10, 4), torch.arange(10) % 3
    model = tacit.variational(TwoInputs(), rank=2, likelihood=tacit.Categorical())
    dicts = [{"a": a[i], "b": b[i], "labels": labels[i]} for i in range(10)]

    def probs(inputs):
        generator = torch.Generator().manual_seed(0)
        return tacit.predict(model, inputs, batch_size=4, generator=generator).probs

    with torch.no_grad():
        weights = model.sample(32, generator=torch.Generator().manual_seed(0))
        logits = model.eval()(a, b, weights=weights)
    expected = tacit.Categorical().predictive(logits).probs
    for inputs in (
        ((a, b), labels),
        ({"a": a, "b": b}, None),
        {"a": a, "b": b.numpy()},
        Items(dicts),
        torch.utils.data.DataLoader(Items(dicts), batch_size=3),
        Items([((a[i], b[i]), labels[i]) for i in range(10)]),
    ):
        torch.testing.assert_close(probs(inputs), expected)
    for data in (((a, b), labels), ({"a": a, "b": b}, labels), Items(dicts)):
        generator = torch.Generator().manual_seed(0)
        found = tacit.evaluate(model, data, generator=generator)
        assert found["nll"] == pytest.approx(F.nll_loss(expected.log(), labels).item(), abs=1e-5)


def test_a_loaders_own_generator_goes_on():
    """Evaluating between epochs must not make the epochs alike."""
    generator = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(64, 4), torch.arange(64) % 3)
    loader = DataLoader(data, 64, shuffle=True, generator=generator)
    model, orders = make_model(tacit.Categorical()), []
    for _ in range(3):
        orders.append(next(iter(loader))[1])
        tacit.evaluate(model, loader, samples=2)
        tacit.predict(model, loader, samples=2)
    assert not orders[0].equal(orders[1])
    assert not orders[1].equal(orders[2])


def test_labels_are_checked():
    model = make_model(tacit.Categorical())
    with pytest.raises(ValueError, match="label 3 is out of range"):
        tacit.evaluate(model, (X, torch.full((len(X),), 3)))
    with pytest.raises(TypeError, match="expected integer labels"):
        tacit.evaluate(model, (X, torch.zeros(len(X))))
    net = nn.Linear(4, 1)
    with pytest.raises(ValueError, match="Bernoulli: expected targets 0 and 1"):
        tacit.evaluate(net, (X, torch.full((len(X),), 0.3)), likelihood=tacit.Bernoulli())


def test_outputs_that_are_nan_have_no_score():
    net = nn.Linear(4, 3)
    nn.init.constant_(net.weight, torch.nan)
    with pytest.raises(ValueError, match="some predictions are NaN"):
        tacit.evaluate(net, (X, torch.zeros(len(X)).long()), likelihood=tacit.Categorical())


@pytest.mark.parametrize("classes", [10, 1000])
def test_half_precision_with_many_classes(classes):
    net = nn.Linear(4, classes).bfloat16()
    labels = torch.arange(len(X)) % classes
    found = tacit.evaluate(net, (X, labels), likelihood=tacit.Categorical())
    exact = tacit.evaluate(net.double(), (X, labels), likelihood=tacit.Categorical())
    assert found["nll"] == pytest.approx(exact["nll"], rel=0.02)


def test_images_are_normalised():
    images = tacit.data.Images(
        torch.randint(0, 256, (6, 1, 2, 2), dtype=torch.uint8), torch.arange(6) % 3,
        mean=(0.3,), std=(0.2,),
    )  # fmt: skip
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    likelihood = tacit.Categorical()
    expected = likelihood.predictive(net((images.pixels.double() / 255 - 0.3) / 0.2)[None]).probs
    found = tacit.predict(net, images, likelihood=likelihood, batch_size=4)
    torch.testing.assert_close(found.probs, expected, atol=1e-5, rtol=0)
    loader = torch.utils.data.DataLoader(images, batch_size=5)
    torch.testing.assert_close(
        tacit.predict(net, loader, likelihood=likelihood).probs, expected, atol=1e-5, rtol=0
    )


def test_gradients_are_not_kept():
    found = tacit.predict(make_model(tacit.Categorical()), X)
    assert not found.probs.requires_grad
    assert isinstance(found.to_numpy()["probs"], np.ndarray)
