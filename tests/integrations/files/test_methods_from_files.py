"""Every method of `tacit.methods` trained from files, saved, loaded, and used for predictions."""

import csv
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_file_models import predicted, write_table

import tacit
from tacit.calling import Variational
from tacit.cli import main
from tacit.integrations.files import (
    FileModel,
    Settings,
    evaluate_file,
    predict_file,
    train_images,
    train_table,
)
from tacit.methods.by_name import METHODS

RIVALS = [name for name in METHODS if name != "implicit_bias_vi"]
SINGLE = ("standard", "temperature_scaling")  # one function, which can't disagree with others


def settings(method, **changes):
    return Settings(**{"epochs": 6, "progress": False, "method": method, **changes})


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return write_table(tmp_path_factory.mktemp("table") / "flats.csv")


@pytest.mark.parametrize("method", RIVALS)
@pytest.mark.parametrize("target", ["price", "rent"])
def test_any_method_for_tables(table, tmp_path, method, target):
    if (method, target) == ("temperature_scaling", "rent"):
        pytest.skip("for classes only; see below")
    ignore = [{"price": "rent", "rent": "price"}[target]]
    model = train_table(table, target, ignore=ignore, hidden=(16,), settings=settings(method))
    assert not isinstance(model.model, Variational)
    loaded = FileModel.load(model.save(tmp_path / "model.safetensors"))
    assert (loaded.task, loaded.classes, loaded.inputs) == (model.task, model.classes, model.inputs)
    ours = predicted(model, table, tmp_path / "ours.csv")
    assert predicted(loaded, table, tmp_path / "theirs.csv") == ours
    found = evaluate_file(loaded, table).metrics
    if target == "price":
        assert found["accuracy"] > 0.75
        assert 0.8 < found["set_coverage_90"] <= 1
    else:
        assert found["rmse"] < 320  # rents vary by 310
        assert 0.8 < found["interval_coverage_90"] <= 1
        std = np.mean([float(row["std"]) for row in ours])
        assert found["rmse"] / 2 < std < 2 * found["rmse"]
    if method in SINGLE:
        assert loaded.foreign is None
        assert not any("uncertainty" in row["foreign"] for row in ours)


def test_inputs_of_any_size_are_standardised(tmp_path):
    path = tmp_path / "t.csv"
    draw = np.random.default_rng(0)
    x = draw.normal(size=300)
    rows = [f"{1e6 + 1e4 * a},{'yes' if a > 0 else 'no'}" for a in x]
    path.write_text("\n".join(["x,y", *rows]))
    model = train_table(path, "y", settings=settings("standard", epochs=20))
    assert evaluate_file(model, path).metrics["accuracy"] > 0.95


def test_validation_data_end_training_of_methods(table):
    notes = []
    model = train_table(
        table, "price", ignore=["rent"], hidden=(8,), settings=settings("standard", epochs=None),
        note=notes.append,
    )  # fmt: skip
    assert "network: MLP 5-8-2, method standard" in notes
    assert "a single function can't disagree: uncertainty makes no input foreign" in notes
    assert evaluate_file(model, table).metrics["accuracy"] > 0.9


def test_a_method_resumes(table, tmp_path):
    given = settings("deep_ensemble", epochs=2, checkpoint=tmp_path / "checkpoints")
    first, again, afresh = (
        train_table(table, "price", ignore=["rent"], hidden=(8,), settings=each)
        for each in (given, given, replace(given, checkpoint=None))
    )
    for other in (again, afresh):
        for name, value in first.model.state_dict().items():
            assert torch.equal(value, other.model.state_dict()[name])


@pytest.mark.parametrize("method", ["mc_dropout", "laplace_grid", "swag"])
def test_methods_for_images(tmp_path, monkeypatch, method):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "cache"))
    for i in range(44):
        file = tmp_path / "photos" / ("dark" if i % 2 else "light") / f"{i}.png"
        file.parent.mkdir(exist_ok=True, parents=True)
        image.new("RGB", (9, 8), (200 - 150 * (i % 2), 90, 3 * i)).save(file)
    model = train_images(
        tmp_path / "photos", size=8, width=4, settings=settings(method, epochs=2)
    )  # fmt: skip
    loaded = FileModel.load(model.save(tmp_path / "model.safetensors"))
    done = predict_file(loaded, tmp_path / "photos", tmp_path / "p.csv")
    assert done.count == 44


def test_on_the_command_line(table, tmp_path, capsys):
    model, out = tmp_path / "m.safetensors", tmp_path / "p.csv"
    arguments = ["--target", "price", "--ignore", "rent", "--hidden", "8", "--epochs", "2"]
    arguments += ["--method", "laplace_marglik", "--out", str(model)]
    assert main(["train", str(table), *arguments]) == 0
    assert "method laplace_marglik" in capsys.readouterr().out
    assert main(["predict", str(model), str(table), "--out", str(out)]) == 0
    assert main(["evaluate", str(model), str(table), "--report", str(tmp_path / "page.html")]) == 0
    assert "set_coverage_90" in capsys.readouterr().out
    with out.open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 300
    assert type(tacit.methods.load(model)).__name__ == "LastLayer"


def test_methods_that_do_not_fit_are_refused(table, tmp_path, capsys):
    arguments = ["--target", "rent", "--method", "temperature_scaling"]
    arguments += ["--out", str(tmp_path / "m.safetensors")]
    assert main(["train", str(table), *arguments]) == 2
    assert "is for classes, and the target has numbers" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["train", str(table), "--method", "nothing"])
    assert "invalid choice: 'nothing'" in capsys.readouterr().err
    with pytest.raises(ValueError, match=r"method: expected one of standard, .*received 'x'"):
        Settings(method="x")


@pytest.mark.parametrize("change", ["missing", "short", "features"])
def test_scaling_that_lies_is_refused(table, tmp_path, change):
    model = train_table(
        table, "price", ignore=["rent"], hidden=(8,), settings=settings("standard", epochs=1)
    )
    mean, std = model.inputs.scaling
    scaling = {"missing": None, "short": (mean, std[:-1]), "features": (mean[:-1], std[:-1])}
    inputs = replace(model.inputs, scaling=scaling[change])
    path = replace(model, inputs=inputs).save(tmp_path / "model.safetensors")
    with pytest.raises(ValueError, match="is damaged"):
        FileModel.load(path)
