"""A resumed run of tacit.fit gives the same bits as an uninterrupted one."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit
from tacit.training import checkpoints as files
from training.fit_problem import X, Y, fit, make_model, weights


def test_a_finished_run_is_not_repeated_and_can_be_extended(tmp_path):
    first = make_model()
    fit(first, epochs=2, checkpoint=tmp_path)
    again = make_model()
    assert len(fit(again, epochs=2, checkpoint=tmp_path)) == 2
    assert_close(weights(again), weights(first), rtol=0, atol=0)
    longer, whole = make_model(), make_model()
    fit(longer, epochs=4, checkpoint=tmp_path)
    fit(whole, epochs=4)
    assert_close(weights(longer), weights(whole), rtol=0, atol=0)


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "nadam"])
@pytest.mark.parametrize("loader", [False, True])
def test_resuming_gives_the_same_bits(optimizer, loader, tmp_path):
    """Even if the data use the random numbers of NumPy and torch."""

    class Noisy(torch.utils.data.Dataset):
        def __len__(self):
            return 96

        def __getitem__(self, i):
            return X[i] + np.random.rand() + torch.rand(1), Y[i]

    def data():
        return DataLoader(Noisy(), batch_size=16, shuffle=True) if loader else Noisy()

    whole, parts = make_model(), make_model()
    np.random.seed(0)
    fit(whole, data(), epochs=4, optimizer=optimizer, lr=0.01)
    np.random.seed(0)
    fit(parts, data(), epochs=2, optimizer=optimizer, lr=0.01, checkpoint=tmp_path)
    np.random.seed(5)
    parts = make_model()
    fit(parts, data(), epochs=4, optimizer=optimizer, lr=0.01, checkpoint=tmp_path)
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)


def test_resuming_with_a_loader_that_has_its_own_generator(tmp_path):
    def data():
        generator = torch.Generator().manual_seed(7)
        return DataLoader(TensorDataset(X, Y), 16, shuffle=True, generator=generator)

    whole, parts = make_model(), make_model()
    fit(whole, data(), epochs=4)
    fit(make_model(), data(), epochs=2, checkpoint=tmp_path)
    fit(parts, data(), epochs=4, checkpoint=tmp_path)
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)


def test_early_stopping_continues_after_a_resume(tmp_path):
    data = (X[:20], Y[:20]), (X[20:], Y[20:])
    settings = {"early_stopping": 3, "lr": 0.1}
    whole, parts = make_model(), make_model()
    history = fit(whole, *data, epochs=200, **settings)
    fit(parts, *data, epochs=4, checkpoint=tmp_path, **settings)
    parts = make_model()
    again = fit(parts, *data, epochs=200, checkpoint=tmp_path, **settings)
    assert again["nll"] == history["nll"]
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)


def test_persistent_workers_raise_an_error(tmp_path):
    loader = DataLoader(TensorDataset(X, Y), 16, num_workers=1, persistent_workers=True)
    with pytest.raises(ValueError, match="persistent_workers=True keep random states"):
        fit(make_model(), loader, checkpoint=tmp_path)


def test_a_checkpoint_of_another_run_raises_an_error(tmp_path):
    fit(make_model(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"it had lr 0.05, now 0.1; seed 0, now 1"):
        fit(make_model(), epochs=1, checkpoint=tmp_path, lr=0.1, seed=1)
    new, again = make_model(), make_model()
    fit(make_model(), epochs=5, checkpoint=tmp_path)
    fit(new, epochs=2, checkpoint=tmp_path, lr=0.1, resume="never")
    assert len(fit(again, epochs=2, checkpoint=tmp_path, lr=0.1)) == 2
    assert_close(weights(again), weights(new), rtol=0, atol=0)


def test_a_checkpoint_of_another_model_raises_an_error(tmp_path):
    fit(make_model(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"network: '2' parameters weight float32 \(2, 16\)"):
        fit(make_model(outputs=3), epochs=2, checkpoint=tmp_path)


def test_another_objective_or_schedule_raises_an_error(tmp_path):
    def model():
        torch.manual_seed(0)
        net = nn.Linear(4, 2)
        return tacit.variational(net, {"": tacit.Diagonal()}, likelihood=tacit.Categorical())

    first = model()
    fit(first, epochs=1, checkpoint=tmp_path, objective=tacit.GVI(first.prior(), 1.0))
    again = model()
    history = fit(again, epochs=2, checkpoint=tmp_path, objective=tacit.GVI(again.prior(), 1.0))
    assert len(history) == 2
    moved = again.prior()
    for change in ({"objective": tacit.GVI(moved, 1.0)}, {"schedule": "cosine"}, {}):
        with pytest.raises(ValueError, match="belongs to another run: it had"):
            fit(model(), epochs=3, checkpoint=tmp_path, **change)


def test_extending_a_run_with_a_schedule_raises_an_error(tmp_path):
    fit(make_model(), epochs=2, checkpoint=tmp_path, schedule="cosine")
    with pytest.raises(ValueError, match="it had epochs 2, now 4"):
        fit(make_model(), epochs=4, checkpoint=tmp_path, schedule="cosine")


def build(activation=None, where=None, likelihood=None, net=None, **settings):
    torch.manual_seed(0)
    net = net or nn.Sequential(nn.Linear(4, 16), activation or nn.ReLU(), nn.Linear(16, 2))
    return tacit.variational(
        net, where or {"2": tacit.LowRank(4)}, likelihood=likelihood or tacit.Categorical(),
        **settings,
    )  # fmt: skip


def frozen():
    net = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 2))
    net[0].requires_grad_(False)
    return net


WEIGHTS = [1.0, 2.0]
OTHERS = {
    "noise": ({"noise": tacit.noise.StudentT(5.0)}, r"noise 'Gaussian\(\)', now 'StudentT\(df=5.0"),
    "df": ({"noise": tacit.noise.Laplace()}, r"noise 'Gaussian\(\)', now 'Laplace\(\)'"),
    "scale": ({"where": {"2": tacit.LowRank(4, scale=0.5)}}, r"covariances: '2' .*scale=1.0.*now"),
    "smoothing": (
        {"likelihood": tacit.Categorical(label_smoothing=0.1)},
        "likelihood: 'label_smoothing' 0.0, now 0.1",
    ),
    "weights": (
        {"likelihood": tacit.Categorical(class_weights=WEIGHTS)},
        r"likelihood: 'class_weights' .*, now \[1.0, 2.0\]",
    ),
    "class dimension": (
        {"likelihood": tacit.Categorical(class_dim=1)}, "likelihood: 'class_dim' None, now 1",
    ),
    "ignored": (
        {"likelihood": tacit.Categorical(ignore_index=0)}, "likelihood: 'ignore_index' None, now 0",
    ),
    "activation": ({"activation": nn.Tanh()}, "network: '1' type ReLU, now Tanh"),
    "slope": ({"activation": nn.ELU(0.5)}, "network: '1' type ReLU, now ELU"),
    "frozen": ({"net": frozen()}, "network: '0' parameters .*, now .* frozen"),
    "parametrization": (
        {"parametrization": tacit.MaximalUpdate()}, "parametrization 'Standard.*now 'MaximalUpdate",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("change", "match"), OTHERS.values(), ids=OTHERS)
def test_another_model_of_the_same_shapes_raises_an_error(change, match, tmp_path):
    fit(build(), epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=f"belongs to another run: it had .*{match}"):
        fit(build(**change), epochs=2, checkpoint=tmp_path)
    assert len(fit(build(), epochs=2, checkpoint=tmp_path)) == 2


class Own(nn.Module):
    """A network with its settings in attributes."""

    def __init__(self, activation=torch.relu, slope=1.0):
        super().__init__()
        self.fc, self.activation, self.slope, self.calls = nn.Linear(4, 2), activation, slope, 0

    def forward(self, x):
        self.calls += 1
        self.rows = len(x)
        return self.activation(self.slope * self.fc(x))


@pytest.mark.parametrize(
    "other", [{"activation": torch.tanh}, {"slope": 0.5}, {"activation": lambda x: 2 * x}]
)
def test_settings_in_attributes_of_a_network_are_compared(other, tmp_path):
    def run(epochs, **settings):
        torch.manual_seed(0)
        model = tacit.variational(Own(**settings), rank=2, likelihood=tacit.Categorical())
        return fit(model, epochs=epochs, checkpoint=tmp_path), model

    _, same = run(1, activation=lambda x: 3 * x)
    run(2, activation=lambda x: 3 * x)
    with pytest.raises(ValueError, match="network: the network (activation|slope) "):
        run(3, **{"activation": lambda x: 3 * x, **other})
    assert len(fit(same, epochs=3, checkpoint=tmp_path)) == 3  # `calls` and `rows` don't count


def test_the_settings_of_a_plain_network_and_its_likelihood_are_compared(tmp_path):
    y = X[:, :1]

    def run(scale=1.0, parametrization=None):
        torch.manual_seed(0)
        likelihood = tacit.Gaussian(scale, learn=False)
        return fit(
            nn.Linear(4, 1), (X, y), likelihood=likelihood, parametrization=parametrization,
            epochs=1, lr=0.01, checkpoint=tmp_path,
        )  # fmt: skip

    run()
    run(parametrization=tacit.Standard())
    with pytest.raises(ValueError, match=r"likelihood: 'log_scale' 0.131\d*, now -0.56"):
        run(scale=0.5)
    with pytest.raises(ValueError, match="parametrization 'Standard.*, now 'MaximalUpdate"):
        run(parametrization=tacit.MaximalUpdate())


def test_what_only_changes_predictions_is_not_compared(tmp_path):
    fit(build(), epochs=1, checkpoint=tmp_path)
    likelihood = tacit.Categorical(["a", "b"], averaging="probs")
    likelihood.set_temperature(2.0)
    assert len(fit(build(likelihood=likelihood), epochs=2, checkpoint=tmp_path)) == 2


def test_another_schedule_function_raises_an_error(tmp_path):
    fit(make_model(), epochs=2, checkpoint=tmp_path, schedule=lambda part: 1 - part / 2)
    fit(make_model(), epochs=2, checkpoint=tmp_path, schedule=lambda part: 1 - 0.5 * part)
    with pytest.raises(ValueError, match=r"schedule values 0.99.*, now 0.98.* at progress 0.0156"):
        fit(make_model(), epochs=2, checkpoint=tmp_path, schedule=lambda part: 1 - part)
    with pytest.raises(ValueError, match=r"schedule 'own', now 'cosine'"):
        fit(make_model(), epochs=2, checkpoint=tmp_path, schedule="cosine")


class Random(torch.utils.data.Dataset):
    """Examples with augmentations: from the global generators, or from one of its own."""

    def __init__(self, x, generator=None):
        self.x, self.generator = x, generator

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        own = 0.0 if self.generator is None else self.generator.random()
        return self.x[i] + np.random.rand() + torch.rand(1) + own, Y[i]


KINDS = {
    "tensors": lambda x: (x, Y),
    "dict": lambda x: ({"input": x}, Y),
    "dataset": lambda x: TensorDataset(x, Y),
    "augmented": Random,
    "loader": lambda x: DataLoader(TensorDataset(x, Y), 16, shuffle=True),
    "workers": lambda x: DataLoader(TensorDataset(x, Y), 16, shuffle=True, num_workers=1),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_data_of_the_same_size_raise_an_error(kind, tmp_path):
    data = KINDS[kind]
    fit(make_model(), data(X), epochs=1, checkpoint=tmp_path)
    with pytest.raises(ValueError, match="it had data: 'content' .*, now "):
        fit(make_model(), data(X + 1), epochs=2, checkpoint=tmp_path)
    assert len(fit(make_model(), data(X.clone()), epochs=2, checkpoint=tmp_path)) == 2


def test_other_targets_or_normalisation_raise_an_error(tmp_path):
    fit(make_model(), (X, Y), epochs=1, checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match="data: 'content'"):
        fit(make_model(), (X, 1 - Y), epochs=2, checkpoint=tmp_path / "a")
    with pytest.raises(ValueError, match="data: 'shapes'"):
        fit(make_model(), (X.double(), Y), epochs=2, checkpoint=tmp_path / "a")

    def run(mean):
        pixels = torch.arange(128, dtype=torch.uint8).reshape(32, 1, 2, 2)
        images = tacit.data.Images(pixels, torch.arange(32) % 2, mean=(mean,))
        net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
        model = tacit.variational(net, rank=2, likelihood=tacit.Categorical())
        tacit.fit(model, images, epochs=1, lr=0.01, checkpoint=tmp_path / "b")

    run(0.4)
    with pytest.raises(ValueError, match="data: 'preprocessing'"):
        run(0.5)


def test_data_that_are_never_the_same_or_have_other_keys_are_compared_by_size(tmp_path):
    class Keys(TensorDataset):
        def __getitem__(self, key):
            return super().__getitem__(int(key.removeprefix("k")))

    def keyed():
        return DataLoader(Keys(X, Y), 16, sampler=[f"k{i}" for i in range(96)])

    def random():
        return Random(X, np.random.default_rng())

    for name, data in (("random", random), ("keys", keyed)):
        fit(make_model(), data(), epochs=1, checkpoint=tmp_path / name)
        assert len(fit(make_model(), data(), epochs=2, checkpoint=tmp_path / name)) == 2


def test_another_order_of_a_loader_raises_an_error(tmp_path):
    fit(make_model(), DataLoader(TensorDataset(X, Y), 16), epochs=1, checkpoint=tmp_path)
    shuffled = DataLoader(TensorDataset(X, Y), 16, shuffle=True)
    with pytest.raises(ValueError, match="'sampler' SequentialSampler, now RandomSampler"):
        fit(make_model(), shuffled, epochs=1, checkpoint=tmp_path)


def test_validation_data_are_compared_with_early_stopping_only(tmp_path):
    for name, settings in (("a", {}), ("b", {"early_stopping": 2})):
        kwargs = {"checkpoint": tmp_path / name, **settings}
        fit(make_model(), validation=(X, Y), epochs=1, **kwargs)
        if settings:
            with pytest.raises(ValueError, match="validation: 'content'"):
                fit(make_model(), validation=(X + 1, Y), epochs=2, **kwargs)
        else:
            assert len(fit(make_model(), validation=(X + 1, Y), epochs=2, **kwargs)) == 2


def test_a_checkpoint_of_an_older_version_raises_an_error(tmp_path):
    fit(make_model(), epochs=1, checkpoint=tmp_path)
    found = files.read_newest(tmp_path)
    settings = {k: v for k, v in found.data["settings"].items() if k not in ("noise", "network")}
    files.write(tmp_path, 6, files.Checkpoint(found.tensors, {**found.data, "settings": settings}))
    with pytest.raises(ValueError, match="another version of tacit: they don't record noise, netw"):
        fit(make_model(), epochs=2, checkpoint=tmp_path)
