"""PyTorch Lightning's Trainer trains variational models, in its modules and in a user's own."""

import copy
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit

pl = pytest.importorskip("pytorch_lightning")

from lightning_worker import Own  # noqa: E402
from pytorch_lightning.callbacks import WeightAveraging  # noqa: E402

from tacit.integrations.lightning import Calibrate, VariationalModule  # noqa: E402
from tacit.likelihood.predictive import ClassPredictive  # noqa: E402

pytestmark = [
    pytest.mark.xdist_group("lightning"),
    pytest.mark.filterwarnings("ignore:You defined a `validation_step` but have no"),
]

X = torch.randn(48, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


def classifier(where=None):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    return tacit.variational(net, where, likelihood=tacit.Categorical())


def loader(targets=Y, batch_size=20, **settings):
    return DataLoader(TensorDataset(X, targets), batch_size=batch_size, **settings)


def trainer(folder, **settings):
    given = {"max_epochs": 2, "enable_checkpointing": False, "logger": False, **settings}
    return pl.Trainer(
        accelerator="cpu", default_root_dir=folder, enable_progress_bar=False,
        enable_model_summary=False, log_every_n_steps=1, **given,
    )  # fmt: skip


def test_training_minimises_the_expected_loss_by_the_steps_of_a_plain_loop(tmp_path):
    model = classifier()
    plain = copy.deepcopy(model)
    torch.manual_seed(1)
    trainer(tmp_path).fit(VariationalModule(model, lr=0.1), loader())
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(plain.param_groups(lr=0.1), momentum=0.9)
    for _ in range(2):
        for x, y in loader():
            loss = F.cross_entropy(plain(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, value in plain.state_dict().items():
        assert_close(model.state_dict()[name], value, msg=name)


def test_validation_logs_the_metrics_of_all_examples_and_keeps_the_draws_of_training(tmp_path):
    model = classifier()
    other = copy.deepcopy(model)
    torch.manual_seed(1)
    run = trainer(tmp_path)
    # Without a generator of its own a DataLoader draws from torch's.
    validation = loader(generator=torch.Generator())
    run.fit(VariationalModule(model, lr=0.1), loader(), validation)
    generator = torch.Generator().manual_seed(0)
    expected = tacit.evaluate(model, (X, Y), generator=generator)
    for name in ("nll", "accuracy", "ece"):  # batches of 20, 20 and 8 examples
        assert run.callback_metrics[f"val_{name}"].item() == pytest.approx(expected[name], rel=1e-4)
    torch.manual_seed(1)
    trainer(tmp_path).fit(VariationalModule(other, lr=0.1), loader())
    for name, value in other.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name


def test_regression_logs_the_root_of_the_mean_squared_error(tmp_path):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    model = tacit.variational(net, likelihood=tacit.Gaussian())
    y = X[:, :1].sin()
    run = trainer(tmp_path, max_epochs=1)
    run.fit(VariationalModule(model, optimizer="adam", samples=8), loader(y), loader(y))
    prediction = tacit.predict(model, X, samples=8, generator=torch.Generator().manual_seed(0))
    rmse = (prediction.mean - y).square().mean().sqrt().item()
    assert run.callback_metrics["val_rmse"].item() == pytest.approx(rmse, rel=1e-4)


def test_predict_returns_predictives_by_the_same_functions_for_all_batches(tmp_path):
    module = VariationalModule(classifier(), samples=5)
    found = trainer(tmp_path).predict(module, loader())
    assert [type(each) for each in found] == [ClassPredictive] * 3
    whole = tacit.predict(module.model, X, samples=5, generator=torch.Generator().manual_seed(0))
    assert_close(torch.cat([each.probs for each in found]), whole.probs)


def test_dicts_of_inputs_have_their_targets_under_labels():
    module = VariationalModule(classifier())
    loss = module.training_step({"input": X, "labels": Y}, 0)
    assert loss.ndim == 0
    with pytest.raises(TypeError, match=r"train: expected batches of \(inputs, targets\)"):
        module.training_step(X, 0)


def test_calibrate_sets_the_temperature_and_training_resets_it(tmp_path):
    module = VariationalModule(classifier(), lr=0.1)
    expected = copy.deepcopy(module)
    torch.manual_seed(1)
    trainer(tmp_path, callbacks=[Calibrate()]).fit(
        module, loader(), loader(generator=torch.Generator())
    )
    torch.manual_seed(1)
    trainer(tmp_path).fit(expected, loader())
    found = tacit.calibrate(
        expected.model, (X, Y), generator=torch.Generator().manual_seed(0)
    ).temperature
    assert module.likelihood.temperature.item() == pytest.approx(found, rel=1e-4)
    trainer(tmp_path).fit(module, loader())
    assert module.likelihood.temperature == 1


@pytest.mark.parametrize("where", [None, {"*": tacit.LowRank(2)}], ids=["relative", "low rank"])
def test_checkpoints_of_lightning_restore_model_optimizer_and_temperature(where, tmp_path):
    module = VariationalModule(classifier(where), lr=0.1)
    run = trainer(tmp_path, callbacks=[Calibrate()])
    run.fit(module, loader(), loader())
    path = tmp_path / "last.ckpt"
    run.save_checkpoint(path)
    loaded = VariationalModule.load_from_checkpoint(path, model=classifier(where), lr=0.1)
    assert loaded.likelihood.temperature != 1
    for name, value in module.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_training_continues_from_a_checkpoint_with_the_optimizer_state(tmp_path):
    whole = VariationalModule(classifier(), lr=0.1)

    class SeedAndSave(pl.Callback):
        def on_train_epoch_end(self, run, _module):
            if run.current_epoch == 0:
                run.save_checkpoint(tmp_path / "first.ckpt")

        def on_train_batch_start(self, run, _module, _batch, index):
            torch.manual_seed(10 * run.current_epoch + index)

    trainer(tmp_path, callbacks=[SeedAndSave()]).fit(whole, loader())
    parts = VariationalModule(classifier(), lr=0.1)
    parts.model(X)  # the first call verifies the use of the weights, with draws of its own
    resumed = trainer(tmp_path, callbacks=[SeedAndSave()])
    resumed.fit(parts, loader(), ckpt_path=tmp_path / "first.ckpt")
    assert resumed.global_step == 6
    for name, value in whole.state_dict().items():
        assert_close(parts.state_dict()[name], value, msg=name)


def test_a_module_of_ones_own_needs_nothing_of_ours(tmp_path):
    own = Own(classifier())
    before = copy.deepcopy(own.state_dict())
    run = trainer(tmp_path, callbacks=[Calibrate((X, Y))])
    run.fit(own, loader())
    trained = own.state_dict()
    moved = [name for name in before if not torch.equal(before[name], trained[name])]
    assert {"model.module.0.weight", "model.factors.2.weight"} <= set(moved)
    assert own.model.likelihood.temperature != 1
    run.save_checkpoint(tmp_path / "own.ckpt")
    loaded = Own.load_from_checkpoint(tmp_path / "own.ckpt", model=classifier())
    for name, value in trained.items():
        assert torch.equal(loaded.state_dict()[name], value), name


def test_lightning_averages_the_iterates_of_means_and_factors(tmp_path):
    iterates = []

    class Record(pl.Callback):
        def on_train_batch_end(self, _trainer, module, *_arguments):
            iterates.append(copy.deepcopy(dict(module.named_parameters())))

    module = VariationalModule(classifier(), lr=0.1)
    run = trainer(tmp_path, callbacks=[Record(), WeightAveraging()])
    run.fit(module, loader())
    for name, value in module.named_parameters():
        mean = torch.stack([iterate[name] for iterate in iterates]).mean(0)
        assert_close(value, mean, msg=name)


def test_errors_say_what_was_expected(tmp_path):
    with pytest.raises(TypeError, match=r"expected a model made by tacit\.variational"):
        VariationalModule(torch.nn.Linear(4, 2))
    with pytest.raises(ValueError, match="likelihood: the model has none"):
        VariationalModule(tacit.variational(torch.nn.Linear(4, 2)))
    run = trainer(tmp_path, callbacks=[Calibrate()])
    with pytest.raises(ValueError, match="Calibrate: the Trainer has no validation data"):
        run.fit(VariationalModule(classifier()), loader())
    own = Own(classifier())
    with pytest.raises(ValueError, match="or the module no validation_step; pass the data"):
        run.fit(own, loader())
    assert run.global_step == 0  # before training
    with pytest.raises(ValueError, match="expected one variational model in Own, found 0"):
        run.fit(Own(torch.nn.Linear(4, 2)), loader())  # before the optimizer is made


def test_calibration_with_several_processes_needs_all_data():
    run = SimpleNamespace(world_size=2, enable_validation=True)
    module = VariationalModule(classifier())
    with pytest.raises(
        ValueError, match=r"each of the 2 processes has a part .* Calibrate\(data\)"
    ):
        Calibrate().setup(run, module, "fit")
    Calibrate((X, Y)).setup(run, module, "fit")


@pytest.mark.slow
def test_two_processes_stay_synchronised_draw_their_own_noise_and_score_all_examples(tmp_path):
    worker = str(Path(__file__).parent / "lightning_worker.py")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, worker, str(tmp_path)], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for part in ("ours", "own"):
        for name, value in first[part].items():
            assert torch.equal(value, second[part][name]), name
    assert first["ours"]["model.likelihood.temperature"] != 1
    assert first["metrics"]["val_nll"] == second["metrics"]["val_nll"]
    assert not torch.equal(first["noise"], second["noise"])
    assert first["rows"] == second["rows"] == 20
