import json
from dataclasses import replace

import pytest
import torch
from tiny_cells import ONE, TINY

import tacit
from tacit._support import files
from tacit.methods import Task
from tacit.studies.bench import METHODS, PROBLEMS, Cell, Problem, measure, measurement


def test_what_a_cell_measures():
    found = measure(replace(ONE, method="implicit_bias_vi"))
    assert 0 <= found["test"]["accuracy"] <= 1
    assert found["threads"] >= 1
    assert found["averaging"].keys() == {"log_probs", "probs", "logits"}
    assert found["corrupted"].keys() == set(tacit.data.CORRUPTIONS["mnist"])
    assert found["cost"]["parameters"] > 61_706
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_with_both_parametrizations(method):
    for parametrization in ("sp", "mup"):
        cell = Cell("digits", method, parametrization, **TINY)
        assert 0 < measure(cell)["test"]["nll"] < 5


def test_random_numbers_are_drawn_on_the_device_of_the_predictor(monkeypatch):
    asked = []

    class Elsewhere(torch.Generator):
        def __new__(cls, device="cpu"):
            asked.append(torch.device(device).type)
            return super().__new__(cls)

    monkeypatch.setattr(torch, "Generator", Elsewhere)
    measurement.seeded(torch.nn.Linear(2, 3, device="meta"), 0)
    assert asked == ["meta"]


def test_methods_share_plain_networks(tmp_path, monkeypatch):
    plain = measure(ONE, tmp_path)
    trained = []
    fit = Task.fit
    monkeypatch.setattr(
        Task, "fit", lambda self, *a, **k: (trained.append(k), fit(self, *a, **k))[1]
    )
    scaled = measure(replace(ONE, method="temperature_scaling"), tmp_path)
    assert not trained
    assert scaled["test"]["accuracy"] == plain["test"]["accuracy"]
    (path,) = tmp_path.glob("*/0.safetensors")
    took = files.read(path, "tacit_network", "the bench")[0]["seconds"]
    assert scaled["cost"]["seconds"] > took > 0  # training time included
    assert scaled["cost"]["peak_bytes"] is None  # not measured without training
    measure(replace(ONE, method="deep_ensemble"), tmp_path)
    assert [k["member"] for k in trained] == [1, 2, 3, 4]
    alone = measure(replace(ONE, method="temperature_scaling"))
    assert alone["test"] == scaled["test"]
    measure(replace(ONE, lr=0.01, method="temperature_scaling"), tmp_path)
    assert len(trained) == 6  # without a folder, and with another learning rate


def test_a_problem_with_an_unknown_kind_is_refused():
    with pytest.raises(ValueError, match=r"Problem\(kind\): expected None or one of .*mnist"):
        Problem(tacit.data.digits, tacit.models.LeNet5, {"sp": 0.1}, "stripes")


def test_unsuitable_images_are_refused_before_training(monkeypatch):
    def small():
        return [tacit.data.Images(torch.zeros(9, 1, 8, 8, dtype=torch.uint8), torch.zeros(9))] * 3

    monkeypatch.setitem(PROBLEMS, "digits", replace(PROBLEMS["digits"], load=small))
    monkeypatch.setattr(Task, "fit", None)
    with pytest.raises(ValueError, match="corrupt: expected square images of at least 28 x 28"):
        measure(ONE)


def test_out_of_distribution_images_are_scored_by_entropy_and_by_mutual_information(monkeypatch):
    problem = replace(
        PROBLEMS["digits"], foreign={"the same": lambda: PROBLEMS["digits"].load().test}
    )
    monkeypatch.setitem(PROBLEMS, "digits", problem)
    found = measure(replace(ONE, method="implicit_bias_vi"))["foreign"]["the same"]
    assert found.keys() == {"auroc", "fpr95", "auroc_mutual_information"}
    assert all(0 <= value <= 1 for value in found.values())
    plain = measure(replace(ONE, samples=1))["foreign"]["the same"]
    assert plain.keys() == {"auroc", "fpr95"}


def test_the_average_of_iterates_is_what_a_cell_measures():
    last, average = (measure(replace(ONE, average=share))["test"] for share in (0.0, 1.0))
    assert last["nll"] != average["nll"]
    assert measure(replace(ONE, average=1.0))["cell"]["average"] == 1.0


def test_a_cell_trains_with_its_optimizer():
    sgd, adam = (measure(replace(ONE, optimizer=name, lr=0.001)) for name in ("sgd", "adamw"))
    assert sgd["test"]["nll"] != adam["test"]["nll"]
    assert adam["cell"]["optimizer"] == "adamw"
