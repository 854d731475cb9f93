"""Data and networks that tacit.fit accepts."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader, TensorDataset

import tacit
from training.fit_problem import X, Y, fit, make_model, weights


@pytest.mark.parametrize(
    "train",
    [
        (X.numpy(), Y.numpy()),
        [X, Y[:, None]],
        TensorDataset(X, Y),
        DataLoader(TensorDataset(X, Y), batch_size=16, shuffle=True),
    ],
    ids=["arrays", "column", "dataset", "loader"],
)
def test_all_kinds_of_data_train_reproducibly(train):
    runs = [make_model(), make_model()]
    for model in runs:
        fit(model, train)
    assert_close(weights(runs[0]), weights(runs[1]), rtol=0, atol=0)


def test_a_dataset_and_its_tensors_give_the_same_result():
    runs = [make_model(), make_model()]
    fit(runs[0], TensorDataset(X, Y))
    fit(runs[1], (X, Y))
    assert_close(weights(runs[0]), weights(runs[1]))


def test_arrays_in_double_precision_are_converted():
    model = make_model()
    fit(model, (X.double().numpy(), Y.int().numpy()), (X.double(), Y[:, None]))
    assert tacit.evaluate(model, (X.double(), Y))["nll"] < 1
    assert tacit.predict(model, X.double().numpy()).probs.dtype == torch.float32


def test_the_normalisation_of_images_is_recorded(tmp_path):
    pixels = torch.randint(0, 256, (32, 1, 2, 2), dtype=torch.uint8).numpy()
    images = tacit.data.Images(pixels, np.arange(32) % 2, mean=(0.4,), std=(0.2,))
    net = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model = tacit.variational(net, rank=2, likelihood=tacit.Categorical())
    tacit.fit(model, images, epochs=1, lr=0.01, batch_size=16, progress=False)
    loaded = tacit.load(
        tacit.save(model, tmp_path / "m.safetensors"), nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    )
    assert loaded.preprocessing == {"scale": 1 / 255, "mean": [0.4], "std": [0.2]}
    with pytest.raises(ValueError, match=r"Images\(mean\): expected 1 or 1 values"):
        tacit.data.Images(pixels, np.arange(32) % 2, mean=(0.4, 0.4))


def test_a_hugging_face_model_trains_on_batches_of_dicts():
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=20, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=8, num_labels=2,
    )  # fmt: skip
    words = torch.randint(0, 20, (64, 8))
    labels = (words[:, 0] > 9).long()
    inputs = {"input_ids": words, "attention_mask": torch.ones_like(words)}
    rows = [{**{k: v[i] for k, v in inputs.items()}, "labels": labels[i]} for i in range(64)]
    net = BertForSequenceClassification(config)
    model = tacit.variational(net, ["classifier"], rank=4, likelihood=tacit.Categorical())
    kwargs = {"epochs": 15, "lr": 0.01, "optimizer": "adam", "batch_size": 16, "progress": False}
    history = tacit.fit(model, (inputs, labels), DataLoader(rows, batch_size=32), **kwargs)
    assert history["nll"][-1] < history["nll"][0]
    assert history["accuracy"][-1] > 0.9
    logits = tacit.predict(model, DataLoader(rows, batch_size=32)).logits
    assert logits.shape == (32, 64, 2)


def test_a_plain_network_trains():
    net = nn.Linear(4, 2)
    history = tacit.fit(net, (X, Y), (X, Y), epochs=10, lr=0.1, likelihood=tacit.Categorical())
    assert history["accuracy"][-1] > 0.9


def test_layers_in_eval_mode_stay_in_eval_mode():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = tacit.variational(net, {"2": tacit.LowRank(2)}, likelihood=tacit.Categorical())
    net[1].eval()
    before = net[1].running_mean.clone()
    fit(model, validation=(X, Y))
    assert not net[1].training
    assert model.training
    assert_close(net[1].running_mean, before, rtol=0, atol=0)


def test_batch_norm_trains_with_draws_and_a_short_last_batch():
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = tacit.variational(net, {"2": tacit.LowRank(2)}, likelihood=tacit.Categorical())
    history = fit(model, (X[:41], Y[:41]), draws=8, batch_size=32)
    assert math.isfinite(history["loss"][-1])
    assert model.draws == 1


def test_validation_data_in_a_loader_do_not_change_training():
    # The loader draws a seed from the global generator in each epoch.
    runs = [make_model(), make_model(), make_model()]
    held_out = TensorDataset(X[:20], Y[:20])
    for model, validation in zip(runs, (None, held_out, DataLoader(held_out, 7)), strict=True):
        fit(model, validation=validation)
    for model in runs[1:]:
        assert_close(weights(model), weights(runs[0]), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        ((X, Y.float()), "validation: Categorical: expected integer labels"),
        ((X.repeat(20, 1), torch.cat([Y.repeat(20)[1:], torch.tensor([2])])), "label 2 is out of"),
        (
            (X, torch.stack([Y, Y], 1)),
            r"validation: Categorical: outputs of shape .* targets of shape \(96, 2\)",
        ),
        (TensorDataset(X), "validation: expected batches of"),
    ],
    ids=["dtype", "label in the last batch", "shape", "no targets"],
)
def test_validation_data_that_do_not_fit_are_refused_before_training(validation, message):
    model = make_model()
    before = weights(model)
    with pytest.raises((ValueError, TypeError), match=message):
        fit(model, validation=validation)
    assert torch.equal(weights(model), before)


def test_binary_validation_targets_out_of_range_are_refused_before_training():
    model = make_model(tacit.Bernoulli(), outputs=1)
    targets = Y.repeat(20)
    targets[-1] = 2
    with pytest.raises(ValueError, match="validation: Bernoulli: target 2 is out of range"):
        fit(model, validation=(X.repeat(20, 1), targets))


def classifier():
    return tacit.variational(tacit.models.MLP(3, [8], 2), likelihood=tacit.Categorical())


USES = {
    "fit": lambda x: tacit.fit(classifier(), (x, torch.ones(len(x)).long()), epochs=1),
    "predict": lambda x: tacit.predict(classifier(), x),
    "evaluate": lambda x: tacit.evaluate(classifier(), (x, torch.ones(len(x)).long())),
}


@pytest.mark.parametrize("use", USES.values(), ids=USES)
def test_inputs_that_do_not_fit_the_network_are_explained(use):
    with pytest.raises(ValueError, match=r"shape \(5, 4\); a layer expected 3 columns, received 4"):
        use(torch.randn(5, 4))
    with pytest.raises(ValueError, match="takes real numbers, received int64.*inputs.float()"):
        use(torch.ones(5, 3).long())


def test_images_of_integers_are_explained():
    model = tacit.variational(tacit.models.LeNet5(), likelihood=tacit.Categorical())
    with pytest.raises(ValueError, match="takes real numbers, received uint8"):
        tacit.predict(model, torch.zeros(2, 1, 28, 28, dtype=torch.uint8))


def test_other_errors_of_the_network_are_its_own():
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(5, 2))  # layers that don't match
    model = tacit.variational(net, likelihood=tacit.Categorical())
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        tacit.predict(model, torch.randn(6, 3))


@pytest.mark.parametrize("kind", [torch.bool, torch.int8, torch.int16, torch.int32, torch.int64])
def test_integers_of_every_type_are_explained(kind):
    for net, shape in ((nn.Linear(3, 2), (5, 3)), (nn.Conv1d(1, 2, 3), (2, 1, 8))):
        with pytest.raises(ValueError, match=f"received {str(kind).removeprefix('torch.')}"):
            tacit.predict(net, torch.ones(shape).to(kind), likelihood=tacit.Categorical())


def test_indices_are_not_blamed_for_layers_that_differ_in_precision():
    words = torch.randint(9, (5, 3))
    net = nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 2).bfloat16())
    with pytest.raises(RuntimeError, match="must have the same dtype"):
        tacit.predict(net, words, likelihood=tacit.Categorical())
    with pytest.raises(RuntimeError, match="indices"):  # which are to be long or int
        tacit.predict(net, words.short(), likelihood=tacit.Categorical())
