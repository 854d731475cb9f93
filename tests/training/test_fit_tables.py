"""Tables as they are: raw columns, no settings."""

import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.data.batches import Batches
from tacit.training import loop
from tacit.training.run import MARGIN
from tacit.training.units import Moments

F64 = torch.float64


def table(count=240, seed=0, dtype=torch.float32):
    """Return columns of very different units, and targets far from 0 with noise 20."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 3, dtype=F64, generator=generator)
    y = (
        1000
        + 100 * x[:, 0]
        + 50 * x[:, 1]
        + 20 * torch.randn(count, dtype=F64, generator=generator)
    )
    return (x * torch.tensor([1e-3, 1.0, 1e4]) + torch.tensor([0.0, -7.0, 1e5])).to(dtype), y.to(
        dtype
    )


def split(x, y):
    return (x[:160], y[:160]), (x[160:200], y[160:200]), (x[200:], y[200:])


def model_of(columns=3, outputs=1, likelihood=None, dtype=torch.float32):
    torch.manual_seed(0)
    net = tacit.models.MLP(columns, [16], outputs).to(dtype)
    return tacit.variational(net, likelihood=likelihood or tacit.Gaussian())


@pytest.fixture
def short(monkeypatch):
    """Bound training without a number of epochs to 600 steps."""
    monkeypatch.setattr(loop, "MOST_STEPS", 600)
    monkeypatch.setattr(loop, "MOST_EPOCHS", 1)


def test_raw_columns_train_with_nothing_set(short):
    train, validation, (x, y) = split(*table())
    model = model_of()
    history = tacit.fit(model, train, validation)
    prediction = tacit.predict(model, x)
    assert prediction.mean.shape == y.shape
    assert (prediction.mean - y).square().mean().sqrt() < 30
    assert 12 < model.likelihood.scale.item() < 30
    assert len(history) == 12  # of 50 steps each


@pytest.mark.parametrize("likelihood", [tacit.Gaussian, tacit.StudentT, tacit.likelihood.Laplace])
@pytest.mark.parametrize("scale", [1.0, 20.0, 1000.0])  # of noise 20 and a spread of 113
def test_a_fixed_noise_scale_trains_with_nothing_set(likelihood, scale, short):
    train, validation, (x, y) = split(*table())
    model = model_of(likelihood=likelihood(scale, learn=False))
    tacit.fit(model, train, validation)
    assert (tacit.predict(model, x).mean - y).square().mean().sqrt() < 35
    assert model.likelihood.scale.item() == pytest.approx(scale)


def test_training_stops_when_the_validation_data_say_so():
    x = table()[0]
    y = torch.randn(len(x), generator=torch.Generator().manual_seed(1))  # nothing to learn
    train, validation, _ = split(x, y)
    model = model_of()
    history = tacit.fit(model, train, validation)
    best = min(range(len(history)), key=history["nll"].__getitem__)
    near = next(i for i, nll in enumerate(history["nll"]) if nll <= history["nll"][best] + MARGIN)
    assert history.stopped == "early stopping"
    assert len(history) == near + 1 + max(10, near + 1)
    assert_close(tacit.evaluate(model, validation)["nll"], history["nll"][best], rtol=0.05, atol=0)


def test_units_of_the_targets_change_nothing_but_units():
    x, y = table(dtype=F64)
    found = []
    for data in ((x, y), (x * 100 - 3, y / 1000 + 5)):
        train, validation, (inputs, _) = split(*data)
        model = model_of(dtype=F64)
        tacit.fit(model, train, validation, epochs=3, lr=0.03)
        generator = torch.Generator().manual_seed(0)
        found.append(tacit.predict(model, inputs, generator=generator))
    assert_close(found[1].mean, found[0].mean / 1000 + 5)
    assert_close(found[1].std, found[0].std / 1000)


def test_the_model_itself_takes_raw_inputs():
    train, validation, (x, _) = split(*table())
    model = model_of()
    tacit.fit(model, train, validation, epochs=1, lr=0.03)
    model.eval()
    z = (x - train[0].mean(0)) / train[0].std(0, correction=0)
    assert_close(model(x), model.module(z), rtol=1e-4, atol=1e-4)
    assert_close(tacit.deterministic(model)(x), model(x))
    generator = torch.Generator().manual_seed(0)
    networks = tacit.ensemble(model, 4, generator=generator)
    weights = model.sample(4, generator=generator.manual_seed(0))
    assert_close(networks(x), model(x, weights=weights))


def test_moments_of_a_last_layer_take_raw_inputs():
    train, validation, (x, _) = split(*table())
    model = model_of()
    tacit.fit(model, train, validation, epochs=1, lr=0.03)
    assert_close(tacit.moments.output_moments(model.eval(), x)[0], model(x))


def test_the_scale_of_each_output_is_its_own():
    x, y = table()
    targets = torch.stack(
        [y, 0.01 * torch.randn(len(y), generator=torch.Generator().manual_seed(1))], 1
    )
    train, validation, (inputs, wanted) = split(x, targets)
    model = model_of(outputs=2)
    tacit.fit(model, train, validation, epochs=60, lr=0.03)
    scale = model.likelihood.scale
    assert scale.shape == (2,)
    assert 10 < scale[0] < 40
    assert 0.006 < scale[1] < 0.02
    assert tacit.predict(model, inputs).coverage(wanted) > 0.75


def test_predicted_noise_scales_train_at_the_same_rate():
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(400, 1, generator=generator)
    y = 300 + 100 * x[:, 0] + (5 + 40 * x[:, 0]) * torch.randn(400, generator=generator)
    model = model_of(1, 2, tacit.HeteroscedasticGaussian())
    tacit.fit(model, (x[:300], y[:300]), (x[300:], y[300:]), epochs=100, lr=0.03)
    std = tacit.predict(model, torch.tensor([[0.05], [0.95]])).std.flatten()
    assert 2 < std[0] < 16
    assert 28 < std[1] < 65


def test_units_are_kept_when_training_goes_on_with_other_data():
    train, validation, _ = split(*table())
    model = model_of()
    tacit.fit(model, train, validation, epochs=1, lr=0.03)
    before = model.likelihood.location.item(), model.inputs.mean.clone()
    tacit.fit(model, (train[0] + 1, train[1] * 2), validation, epochs=1, lr=0.03)
    assert model.likelihood.location.item() == before[0]
    assert_close(model.inputs.mean, before[1])


def test_standardise_can_be_switched_off_and_on():
    train, _, _ = split(*table())
    scaled = ((train[0] - train[0].mean(0)) / train[0].std(0), (train[1] - 1000) / 100)
    model = model_of()
    tacit.fit(model, scaled, epochs=1, lr=0.01, standardise=False)
    assert model.inputs is None
    assert not model.likelihood.has_units
    labels = (train[1] > 1000).long()
    for given, expected in ((None, False), (True, True)):
        model = model_of(outputs=2, likelihood=tacit.Categorical())
        tacit.fit(model, (scaled[0], labels), epochs=1, lr=0.01, standardise=given)
        assert (model.inputs is not None) == expected


def test_a_plain_network_has_units_of_targets_only(short):
    train, validation, (x, y) = split(*table())
    torch.manual_seed(0)
    net = nn.Sequential(tacit.models.Standardise.of(train[0]), tacit.models.MLP(3, [16], 1))
    likelihood = tacit.Gaussian()
    tacit.fit(net, train, validation, likelihood=likelihood)
    found = tacit.predict(net, x, likelihood=likelihood)
    assert (found.mean - y).square().mean().sqrt() < 30


def test_loaders_are_standardised_too():
    train, validation, (x, y) = split(*table())
    model = model_of()
    loader = DataLoader(TensorDataset(*train), batch_size=32, shuffle=True)
    tacit.fit(model, loader, validation, epochs=40, lr=0.03)
    assert (tacit.predict(model, x).mean - y).square().mean().sqrt() < 40


def test_constant_columns_and_targets():
    x, y = table()
    x[:, 1] = 4.0
    model = model_of()
    tacit.fit(model, (x, torch.full_like(y, 7.0)), epochs=2, lr=0.03)
    assert tacit.predict(model, x[:5]).mean.isfinite().all()
    assert model.inputs.std[1] == 4


@pytest.mark.parametrize("value", [0.0, 2.0, -5e6])
def test_another_value_of_a_column_that_was_constant_hardly_matters(value):
    x, y = table()
    x[:, 1] = value
    model = model_of()
    tacit.fit(model, (x, y), epochs=10, lr=0.03)
    other = x.clone()
    other[:, 1] += 0.1 * max(1, abs(value))
    means = [tacit.predict(model, rows, generator=torch.manual_seed(0)).mean for rows in (x, other)]
    assert (means[1] - means[0]).abs().max() < y.std()
    layer = tacit.models.Standardise.of(x)
    assert_close(layer.std, model.inputs.std)


@pytest.mark.parametrize("outputs", [1, 2])
def test_one_example_is_predicted(outputs):
    x, y = table()
    likelihood = (tacit.Gaussian, tacit.HeteroscedasticStudentT)[outputs - 1]()
    model = model_of(outputs=outputs, likelihood=likelihood)
    tacit.fit(model, (x[:1], y[:1]), epochs=20)
    found = tacit.predict(model, x)
    assert (found.mean - y[0]).abs().max() < 10  # units of 1, and inputs of at most their sizes
    assert found.std.isfinite().all()


def test_targets_that_are_not_finite_are_refused():
    x, y = table()
    y[3] = math.nan
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    with pytest.raises(ValueError, match="train: some targets are not finite"):
        tacit.fit(model_of(), loader, epochs=1, lr=0.03)


def test_saved_models_keep_their_units(tmp_path):
    train, validation, (x, _) = split(*table())
    model = model_of()
    tacit.fit(model, train, validation, epochs=2, lr=0.03)
    tacit.save(model, tmp_path / "model.safetensors")
    loaded = tacit.load(tmp_path / "model.safetensors")
    first, second = (
        tacit.predict(m, x, generator=torch.Generator().manual_seed(0)) for m in (model, loaded)
    )
    assert_close(second.mean, first.mean)
    assert_close(second.std, first.std)
    fresh = model_of()
    fresh.load_state_dict(model.state_dict())
    assert_close(fresh.eval()(x), model.eval()(x))


def test_epochs_and_schedule_need_each_other():
    train, validation, _ = split(*table())
    with pytest.raises(ValueError, match="epochs: expected a number of passes, or validation data"):
        tacit.fit(model_of(), train)
    with pytest.raises(ValueError, match="schedule, average and early_stopping need a number"):
        tacit.fit(model_of(), train, validation, schedule="cosine")


def test_a_run_without_epochs_resumes_with_the_same_bits(tmp_path, short):
    train, validation, _ = split(*table())

    def stop(row, model):
        if row["epoch"] == 3:
            raise KeyboardInterrupt

    whole, parts = model_of(), model_of()
    tacit.fit(whole, train, validation, checkpoint=tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        tacit.fit(parts, train, validation, checkpoint=tmp_path / "parts", callbacks=[stop])
    parts = model_of()
    history = tacit.fit(parts, train, validation, checkpoint=tmp_path / "parts")
    assert len(history) == 12
    assert_close(parts.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_other_validation_data_are_another_run_without_epochs(tmp_path, short):
    train, validation, test = split(*table())
    tacit.fit(model_of(), train, validation, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="belongs to another run: it had validation"):
        tacit.fit(model_of(), train, test, checkpoint=tmp_path)


def test_inputs_of_a_loader_that_are_not_finite_are_refused():
    x, y = table()
    x[5, 1] = math.inf
    loader = DataLoader(TensorDataset(x, y), batch_size=32)
    with pytest.raises(ValueError, match="train: some inputs are not finite"):
        tacit.fit(model_of(), loader, epochs=1, lr=0.03)


def test_features_of_a_table_are_those_of_its_standardised_columns():
    train, validation, (x, _) = split(*table())
    model = model_of()
    tacit.fit(model, train, validation, epochs=1, lr=0.03)
    found = tacit.inference.feature_distance(model, train)
    plain = model_of()
    plain.module.load_state_dict(model.module.state_dict())
    expected = tacit.inference.feature_distance(plain, (model.inputs(train[0]), train[1]))
    assert_close(found(x), expected(model.inputs(x)))


def test_several_passes_in_an_epoch():
    x, y = torch.arange(10.0)[:, None], torch.arange(10)
    data = Batches("train", (x, y), 4, shuffle=True, passes=3)
    assert len(data) == 9
    batches = [batch.targets for batch in data.epoch(seed=1)]
    for one_pass in (batches[:3], batches[3:6], batches[6:]):
        assert sorted(torch.cat(one_pass).tolist()) == list(range(10))
    assert not torch.equal(torch.cat(batches[:3]), torch.cat(batches[3:6]))
    for skip in (1, 3, 4, 8):
        rest = [batch.targets for batch in data.epoch(seed=1, skip=skip)]
        assert all(map(torch.equal, rest, batches[skip:]))
        assert len(rest) == 9 - skip


def test_moments_of_parts_are_those_of_the_whole():
    rows = torch.randn(50, 2, dtype=F64) * 1e-3 + 1e6
    moments = Moments()
    for part in rows.split(7):
        moments.add(part)
    assert_close(moments.mean, rows.mean(0))
    assert_close(moments.std, rows.std(0, correction=0), rtol=1e-6, atol=0)


def test_integer_columns_are_numbers_unless_they_are_indices():
    x = torch.randint(0, 50, (200, 3), generator=torch.Generator().manual_seed(0))
    y = x.float() @ torch.tensor([1.0, -2.0, 0.5])
    model = model_of(likelihood=tacit.Gaussian())
    tacit.fit(model, (x, y), epochs=2, lr=0.01, progress=False)
    assert_close(model.inputs.mean, x.float().mean(0))
    assert tacit.predict(model, x).mean.shape == (200,)
    net = nn.Sequential(nn.Embedding(50, 4), nn.Flatten(), nn.Linear(12, 1))
    words = tacit.variational(net, likelihood=tacit.Gaussian())
    tacit.fit(words, (x, y), epochs=1, lr=0.01, progress=False)
    assert words.inputs is None
