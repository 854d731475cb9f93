"""`tacit train`, `tacit predict` and `tacit evaluate`, end to end on small files."""

import csv
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from tacit.cli import main


def run(*arguments):
    return main([*map(str, arguments)])


def write_flowers(path, count=120, seed=0):
    """Write two kinds of flowers, told apart by the length of their petals."""
    draw = random.Random(seed)
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter=";")
        rows.writerow(["petal", "colour", "found", "height", "kind"])
        for _ in range(count):
            kind = draw.choice(["iris", "rose"])
            petal = draw.gauss(2 if kind == "iris" else 5, 0.3)
            rows.writerow(
                [
                    "" if draw.random() < 0.05 else f"{petal:.2f}".replace(".", ","),
                    draw.choice(["red", "blue"]),
                    f"2024-0{draw.randint(4, 9)}-15",
                    f"{10 * petal + draw.gauss(0, 1):.2f}",
                    kind,
                ]
            )
    return path


@pytest.fixture(scope="module")
def flowers(tmp_path_factory):
    return write_flowers(tmp_path_factory.mktemp("flowers") / "flowers.csv")


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_classes_end_to_end(flowers, tmp_path, capsys):
    model, out, page = (tmp_path / name for name in ("m.safetensors", "p.csv", "page.html"))
    arguments = ["--target", "kind", "--ignore", "height", "--epochs", 20, "--hidden", "8,8"]
    assert run("train", flowers, *arguments, "--out", model) == 0
    printed = capsys.readouterr().out
    for line in (
        "task: classification of kind, 2 classes; --task changes this",
        "column colour: 2 categories",
        "column found: dates",
        "network: MLP 5-8-8-2",
        f"model: {model}",
    ):
        assert line in printed
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    assert "replaces it" not in printed

    new = tmp_path / "new.csv"
    new.write_text("petal,colour,found\n2.1,red,2024-05-15\n5.2,green,2024-05-15\n")
    assert run("predict", model, new, "--out", out) == 0
    assert "conformal, from 20 held-out examples" in capsys.readouterr().out
    first, second = rows_of(out)
    assert (first["label"], second["label"]) == ("iris", "rose")
    assert "iris" in first["set"].split("|")
    assert second["foreign"].startswith("colour: green")

    test = write_flowers(tmp_path / "test.csv", seed=1)
    assert run("evaluate", model, test, "--report", page) == 0
    printed = capsys.readouterr().out
    assert "set_coverage_90" in printed
    assert f"page: {page}" in printed
    text = page.read_text()
    assert text.count("<img") == 3
    assert "Accuracy against confidence" in text


def test_numbers_end_to_end(flowers, tmp_path, capsys):
    names = "models/m.safetensors", "predictions/p.csv", "pages/page.html"
    model, out, page = (tmp_path / name for name in names)  # folders are made
    arguments = ["--target", "height", "--ignore", "kind", "--epochs", 20]
    assert run("train", flowers, *arguments, "--out", model) == 0
    assert "task: regression of height" in capsys.readouterr().out
    assert run("predict", model, flowers, "--out", out, "--level", 0.8) == 0
    rows = rows_of(out)
    assert list(rows[0]) == ["line", "mean", "std", "low", "high", "foreign"]
    assert all(float(row["low"]) < float(row["mean"]) < float(row["high"]) for row in rows)
    assert run("evaluate", model, flowers, "--report", page) == 0
    printed = capsys.readouterr().out
    assert "\ncoverage_90: of the intervals of the predictive distribution" in printed
    assert "\ninterval_coverage_90: of the intervals that tacit predict writes" in printed
    assert page.read_text().count("<img") == 2


def test_a_model_that_will_be_replaced_is_named_before_training(flowers, tmp_path, capsys):
    model = tmp_path / "m.safetensors"
    arguments = ["train", flowers, "--target", "kind", "--epochs", 1, "--out", model]
    assert run(*arguments) == run(*arguments) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed.count(f"{model} exists; this model replaces it when training has ended") == 1
    assert any("task:" in line for line in printed[printed.index(f"model: {model}") :])


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    image = pytest.importorskip("PIL.Image")
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for i in range(110):
        kind = ("dark", "light")[i % 2]
        pixels = draw.integers(0, 100, (12, 10, 3), dtype=np.uint8) + 150 * (i % 2)
        path = folder / kind / f"{i}.png"
        path.parent.mkdir(exist_ok=True)
        image.fromarray(pixels.astype(np.uint8)).save(path)
    return folder


def test_images_end_to_end(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "cache"))
    model, out = tmp_path / "m.safetensors", tmp_path / "p.csv"
    arguments = ["--size", 8, "--epochs", 1, "--out", model]
    assert run("train", photos, *arguments) == 0
    printed = capsys.readouterr().out
    assert "task: classification of images, 2 classes: dark, light" in printed
    assert "images: 88 for training, 11 to end it, 11 for sets" in printed
    broken = tmp_path / "new"
    broken.mkdir()
    (broken / "a.png").write_bytes((photos / "dark" / "0.png").read_bytes())
    (broken / "b.png").write_bytes(b"not an image")
    assert run("predict", model, broken, "--out", out) == 2
    assert "b.png (not an image that Pillow can read)" in capsys.readouterr().err
    assert run("predict", model, broken, "--out", out, "--skip-broken") == 0
    (row,) = rows_of(out)
    assert row["file"] == "a.png"
    assert row["label"] in ("dark", "light")
    listing = tmp_path / "files.csv"
    for text in ("file\nnew/a.png\n", "File;Label\nnew/a.png;dark\n"):
        listing.write_text(text)
        assert run("predict", model, listing, "--out", out) == 0
        assert rows_of(out) == [{**row, "file": "new/a.png"}]
    listing.write_text(f"file,label\nnew/a.png,dark\n{photos / 'light' / '1.png'},light\n")
    assert run("evaluate", model, listing) == 0
    assert "accuracy" in capsys.readouterr().out
    listing.write_text("file,label\nnew/a.png,dark\nnew/b.png,grey\n")
    assert run("evaluate", model, listing) == 2
    assert "has classes that the model doesn't know: grey" in capsys.readouterr().err
    listing.write_text("path\nnew/a.png\n")
    assert run("predict", model, listing) == 2
    assert "expected the column file, with files relative to it" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert run("predict", model, tmp_path / "empty") == 2
    assert "has no images" in capsys.readouterr().err
    assert run("predict", model, tmp_path / "none") == 3
    assert "there is no folder or file" in capsys.readouterr().err


def test_few_images_in_a_csv_have_sets_without_a_guarantee(photos, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TACIT_DATA", str(tmp_path / "cache"))
    names = [photos / ("dark", "light")[i % 2] / f"{i}.png" for i in range(20)]
    listing = tmp_path / "files.csv"
    listing.write_text("file,label\n" + "".join(f"{name},{name.parent.name}\n" for name in names))
    model = tmp_path / "m.safetensors"
    assert run("train", listing, "--size", 8, "--epochs", 1, "--flip", "--out", model) == 0
    printed = capsys.readouterr().out
    assert "images: 16 for training, 4 to end it, 0 for sets" in printed
    assert "too few examples to hold some out" in printed
    assert run("predict", model, names[0], "--out", tmp_path / "p.csv") == 0
    assert "(predictive): too few examples were held out" in capsys.readouterr().out
    assert rows_of(tmp_path / "p.csv")[0]["file"] == "0.png"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--target: name the column of .* one of petal, colour, found, height, kind."),
        (["--target", "sort"], "no column 'sort'; its columns are petal, colour, found"),
        (["--target", "kind", "--size", "8"], "--size: does not apply to tables"),
        (["--target", "kind", "--skip-broken"], "--skip-broken: does not apply to tables"),
        (["--target", "kind", "--out", "."], "--out: expected a file, received the folder"),
    ],
)
def test_bad_arguments_of_train_are_refused(flowers, arguments, message, capsys):
    assert run("train", flowers, *arguments) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1
    assert re.search(message, error)


def test_options_of_tables_do_not_apply_to_images(tmp_path, capsys):
    assert run("train", tmp_path, "--target", "y") == 2
    assert "--target: does not apply to images" in capsys.readouterr().err


def test_widths_are_integers(flowers, capsys):
    with pytest.raises(SystemExit):
        run("train", flowers, "--target", "kind", "--hidden", "64;64")
    assert "expected widths separated by commas, such as 64,64" in capsys.readouterr().err


def test_checkpoints_of_another_command_are_kept(flowers, tmp_path, capsys, monkeypatch):
    out = tmp_path / "m.safetensors"
    common = ["train", flowers, "--target", "kind", "--out", out, "--epochs", 2]
    monkeypatch.setattr("tacit.cli.train.shutil.rmtree", lambda *a, **k: None)
    assert run(*common) == 0
    assert run(*common, "--lr", 0.01) == 2
    error = capsys.readouterr().err
    assert "has checkpoints of another command with the same --out" in error
    assert list((tmp_path / "m.safetensors.checkpoints").glob("step-*"))


def test_missing_files_and_matplotlib_are_reported(flowers, tmp_path, capsys, monkeypatch):
    assert run("predict", tmp_path / "none.safetensors", flowers) == 3
    assert "there is no file" in capsys.readouterr().err
    assert run("train", tmp_path / "none.csv", "--target", "y") == 3
    assert "there is no file" in capsys.readouterr().err
    assert run("evaluate", tmp_path / "m", flowers, "--report", tmp_path) == 2
    assert "--report: expected a file" in capsys.readouterr().err
    monkeypatch.setattr("tacit.cli.evaluate.find_spec", lambda name: None)
    assert run("evaluate", tmp_path / "m", flowers, "--report", tmp_path / "p.html") == 2
    assert "the figures need matplotlib" in capsys.readouterr().err


def test_a_killed_run_resumes_with_the_same_result(flowers, tmp_path):
    """Killed by SIGKILL in its own process, then continued; against a run without a kill."""
    killed, whole = tmp_path / "killed.safetensors", tmp_path / "whole.safetensors"
    arguments = ["train", str(flowers), "--target", "kind", "--epochs", "120"]
    command = [sys.executable, "-m", "tacit", *arguments, "--out", str(killed)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env={**os.environ})
    folder = tmp_path / "killed.safetensors.checkpoints"
    try:
        until = time.monotonic() + 60
        while len(list(folder.glob("step-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.01)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not killed.exists()
    assert list(folder.glob("step-*"))
    assert run(*arguments, "--out", killed) == 0
    assert not folder.exists()
    assert run(*arguments, "--out", whole) == 0
    assert killed.read_bytes() == whole.read_bytes()
