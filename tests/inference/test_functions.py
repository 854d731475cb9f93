import numpy as np
import pytest
import torch
from several_inputs import Items, TwoInputs
from torch import nn
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


def test_predictions_are_those_of_the_sampled_functions():
    model = make_model(tacit.Categorical())
    found = tacit.predict(model, X, samples=6, generator=seeded())
    assert model.training  # the mode is restored
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
def test_arrays_and_loaders_give_the_same_predictions(inputs):
    model = make_model(tacit.Categorical())
    expected = tacit.predict(model, X, generator=seeded()).logits
    assert_close(tacit.predict(model, inputs, generator=seeded()).logits, expected)


def test_a_plain_network_is_one_function():
    net = nn.Linear(4, 3)
    found = tacit.predict(net, X, likelihood=tacit.Categorical())
    assert found.logits.shape == (1, 10, 3)
    assert_close(found.logits[0], net(X).detach())


def test_averaging_can_be_chosen():
    model = make_model(tacit.Categorical())
    by_name = {
        name: tacit.predict(model, X, averaging=name, generator=seeded()).probs
        for name in ("log_probs", "probs", "logits")
    }
    assert_close(by_name["probs"], tacit.predict(model, X, generator=seeded()).probs)
    assert not torch.allclose(by_name["probs"], by_name["log_probs"])
    assert_close(by_name["log_probs"], by_name["logits"])
    with pytest.raises(ValueError, match="averaging: expected log_probs, probs, logits"):
        tacit.predict(model, X, averaging="mean")
    with pytest.raises(ValueError, match="averaging: expected a Categorical or Bernoulli"):
        tacit.predict(make_model(tacit.Gaussian()), X, averaging="probs")


def test_bad_input_is_refused():
    model = make_model()
    with pytest.raises(ValueError, match="likelihood: the model has none; pass one, such as"):
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
        DataLoader(Items(dicts), batch_size=3),
        Items([((a[i], b[i]), labels[i]) for i in range(10)]),
    ):
        assert_close(probs(inputs), expected)


def test_images_are_normalised():
    images = tacit.data.Images(
        torch.randint(0, 256, (6, 1, 2, 2), dtype=torch.uint8), torch.arange(6) % 3,
        mean=(0.3,), std=(0.2,),
    )  # fmt: skip
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()
    likelihood = tacit.Categorical()
    expected = likelihood.predictive(net((images.pixels.double() / 255 - 0.3) / 0.2)[None]).probs
    found = tacit.predict(net, images, likelihood=likelihood, batch_size=4)
    assert_close(found.probs, expected, atol=1e-5, rtol=0)
    loader = DataLoader(images, batch_size=5)
    assert_close(
        tacit.predict(net, loader, likelihood=likelihood).probs, expected, atol=1e-5, rtol=0
    )


@pytest.mark.parametrize("batch_size", [1, 3, 10])
@pytest.mark.parametrize("likelihood", [tacit.Categorical(), tacit.Gaussian()])
def test_a_stream_has_the_predictions_of_the_same_functions(batch_size, likelihood):
    model = make_model(likelihood)
    options = {"batch_size": batch_size, "samples": 6}
    whole = tacit.predict(model, X, generator=seeded(), **options)
    parts = list(tacit.predict(model, X, generator=seeded(), stream=True, **options))
    assert [len(part) for part in parts] == [len(rows) for rows in X.split(batch_size)]
    for name in whole.columns:
        assert_close(torch.cat([getattr(part, name) for part in parts]), getattr(whole, name))


def test_a_stream_takes_loaders_and_averagings():
    model = make_model(tacit.Categorical())
    loader = DataLoader(X, batch_size=4)
    found = tacit.predict(model, loader, averaging="logits", stream=True, generator=seeded())
    expected = tacit.predict(model, X, averaging="logits", generator=seeded())
    assert_close(torch.cat([part.probs for part in found]), expected.probs)


def test_a_stream_restores_modes_and_leaves_gradients_on():
    model = make_model(tacit.Categorical())
    model.module[2].eval()
    expected = [module.training for module in model.modules()]

    def modes():
        return [module.training for module in model.modules()]

    stream = tacit.predict(model, X, batch_size=3, stream=True)
    assert modes() == expected  # until the first batch
    part = next(stream)
    assert not any(modes())
    assert not part.probs.requires_grad
    assert torch.is_grad_enabled()
    assert len(list(stream)) == 3
    assert modes() == expected
    stopped = tacit.predict(model, X, batch_size=3, stream=True)
    next(stopped)
    stopped.close()
    assert modes() == expected
    assert torch.is_grad_enabled()


def test_arguments_of_a_stream_are_checked_before_its_first_batch():
    model = make_model(tacit.Categorical())
    for bad, match in (
        ({"samples": 0}, "samples: expected"),
        ({"chunk_size": 0}, "chunk_size: expected"),
        ({"averaging": "x"}, "averaging: expected"),
    ):
        with pytest.raises(ValueError, match=match):
            tacit.predict(model, X, stream=True, **bad)
    with pytest.raises(ValueError, match="inputs: expected the examples in the first dimension"):
        next(tacit.predict(model, X[0], stream=True))


def test_predictions_carry_no_gradients():
    assert not tacit.predict(make_model(tacit.Categorical()), X).probs.requires_grad


def test_other_objects_than_models_are_refused():
    for call in (
        lambda: tacit.predict(None, X), lambda: tacit.predict(lambda x: x, X),
        lambda: tacit.evaluate(None, (X, X), likelihood=tacit.Gaussian()),
        lambda: tacit.calibrate(None, (X, X)),
    ):  # fmt: skip
        with pytest.raises(TypeError, match="model: expected a variational model, a network"):
            call()
    with pytest.raises(TypeError, match=r"likelihood: expected tacit.Categorical\(\), .* received"):
        tacit.predict(nn.Linear(4, 3), X, likelihood="categorical")


def test_bad_averagings_and_chunk_sizes_are_refused_before_the_first_call():
    calls = []
    net = nn.Linear(4, 3)
    net.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(ValueError, match="averaging: expected log_probs, probs, logits; received"):
        tacit.predict(net, X, likelihood=tacit.Categorical(), averaging="x")
    with pytest.raises(ValueError, match="averaging: expected a Categorical or Bernoulli"):
        tacit.predict(net, X, likelihood=tacit.Gaussian(), averaging="probs")
    for size in (0, -1):
        with pytest.raises(ValueError, match="chunk_size: expected an integer of at least 1"):
            tacit.predict(net, X, likelihood=tacit.Categorical(), chunk_size=size)
    assert not calls


@pytest.mark.parametrize(
    "where", [tacit.every_layer, {"0": tacit.Kronecker(2, 2), "3": tacit.Diagonal()}]
)
def test_with_a_chunk_size_only_the_weights_of_a_chunk_are_held(where):
    model = tacit.variational(
        nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Identity(), nn.Linear(64, 3)), where,
        likelihood=tacit.Categorical(),
    )  # fmt: skip
    expected = tacit.predict(model, X, samples=20, generator=seeded()).logits
    held = []
    model.register_forward_pre_hook(
        lambda _m, _a, given: held.append(len(given["weights"]["0.weight"])), with_kwargs=True
    )
    found = tacit.predict(model, X, samples=20, generator=seeded(), chunk_size=3, batch_size=4)
    assert_close(found.logits, expected)
    assert max(held) == 3
    assert sum(held) == 3 * 20  # three batches


def test_sequences_of_logits_need_a_class_dimension():
    x = torch.randn(4, 3, 6)  # 3 classes at 6 positions in torch's order, or 6 classes at 3
    with pytest.raises(
        ValueError, match=r"shape \(1, 4, 3, 6\) have two .*no targets.*class_dim=1"
    ):
        tacit.predict(nn.Identity(), x, likelihood=tacit.Categorical())
    with pytest.raises(ValueError, match="class_names: expected 6 names, received 5"):
        tacit.predict(nn.Identity(), x, likelihood=tacit.Categorical(range(5)))
    for last in (tacit.Categorical(range(6)), tacit.Categorical(class_dim=-1)):
        assert_close(tacit.predict(nn.Identity(), x, likelihood=last).probs, x.softmax(-1))
    for second in (tacit.Categorical(range(3)), tacit.Categorical(class_dim=1)):
        found = tacit.predict(nn.Identity(), x, likelihood=second)
        assert_close(found.probs, x.movedim(1, -1).softmax(-1))


def test_images_of_logits():
    net, x = nn.Conv2d(1, 3, 1), torch.randn(2, 1, 8, 32)
    with pytest.raises(ValueError, match=r"shape \(1, 2, 3, 8, 32\) have two dimensions that may"):
        tacit.predict(net, x, likelihood=tacit.Categorical())
    with pytest.raises(ValueError, match="expected 32 names, received 3; .*class dimension -1"):
        tacit.predict(net, x, likelihood=tacit.Categorical(["a", "b", "c"], class_dim=-1))
    found = tacit.predict(net, x, likelihood=tacit.Categorical(["a", "b", "c"]))
    assert_close(found.probs, net(x).movedim(1, -1).softmax(-1))


@pytest.mark.parametrize("inputs", [torch.ones(4), [[1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]])
def test_inputs_without_a_batch_dimension_are_refused(inputs):
    with pytest.raises(ValueError, match="inputs: expected the examples in the first dimension"):
        tacit.predict(nn.Linear(4, 1), inputs, likelihood=tacit.Gaussian())


def test_a_table_of_pandas_is_read_by_rows():
    pandas = pytest.importorskip("pandas")
    x = torch.arange(9.0).reshape(3, 3)
    net, y = nn.Linear(3, 3), torch.tensor([0, 1, 2])
    found = [
        tacit.evaluate(net, (inputs, y), likelihood=tacit.Categorical())
        for inputs in (x, pandas.DataFrame(x.numpy()), x.flip(0).numpy()[::-1])
    ]
    assert found[0] == found[1] == found[2]


def test_predict_takes_a_table_of_pandas():
    pandas = pytest.importorskip("pandas")
    x, net = torch.arange(9.0).reshape(3, 3), nn.Linear(3, 3)
    first, second = (
        tacit.predict(net, inputs, likelihood=tacit.Categorical()).probs
        for inputs in (x, pandas.DataFrame(x.numpy()))
    )
    assert torch.equal(first, second)


@pytest.mark.parametrize("inputs", [[["a", 1.0]], np.array([["a"]]), np.array([[1, None]])])
def test_text_among_the_inputs_is_refused(inputs):
    with pytest.raises(TypeError, match="received .* with text, dates or mixed values"):
        tacit.evaluate(nn.Linear(2, 2), (inputs, [0]), likelihood=tacit.Categorical())
