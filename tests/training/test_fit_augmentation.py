"""Augmented training images: only in training, and the same in a resumed run."""

import os
import signal

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.data import DataLoader

import tacit
from tacit.data import Augmentation, Images
from tacit.data.batches import Batches
from tacit.training.checkpoints import read_newest
from training.fit_problem import weights

GENERATOR = torch.Generator().manual_seed(0)
PIXELS = torch.randint(0, 256, (48, 3, 8, 8), dtype=torch.uint8, generator=GENERATOR)
LABELS = (PIXELS[:, 0].float().mean((1, 2)) > 127).long()


def images(augment):
    return Images(PIXELS, LABELS, (0.5,), (0.25,), augment=augment)


def make_model(where=None):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2))
    return tacit.variational(net, where, likelihood=tacit.Categorical())


def fit(model, train, validation=None, **settings):
    return tacit.fit(
        model, train, validation, **{"epochs": 4, "lr": 0.02, "batch_size": 16, **settings}
    )


class Counted:
    """Mirrors images, and records the number of images of each call."""

    def __init__(self):
        self.calls = []

    def __call__(self, pixels):
        self.calls.append(len(pixels))
        return pixels.flip(-1)


def test_only_training_batches_are_augmented():
    augment = Counted()
    model = make_model()
    fit(model, images(augment), images(augment), epochs=1)
    assert augment.calls == [16, 16, 16]
    tacit.predict(model, images(augment), samples=2)
    tacit.evaluate(model, images(augment), samples=2)
    tacit.calibrate(model, images(augment))
    assert len(augment.calls) == 3


def test_what_the_network_sees():
    seen = []
    net = nn.Sequential(nn.Flatten(), nn.Linear(192, 2))
    net.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].detach()))
    train = images(lambda pixels: 255 - pixels)
    tacit.fit(net, train, epochs=1, lr=0.01, batch_size=48, likelihood=tacit.Categorical())
    order = next(Batches("train", images(None), 48, shuffle=True).epoch()).inputs
    expected = ((255 - order.double()) / 255 - 0.5) / 0.25
    assert_close(seen[-1].double(), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("where", [None, {"3": tacit.LowRank(2)}])
def test_resuming_gives_the_same_bits(where, tmp_path):
    augment = Augmentation(crop=2, area=0.5)
    whole, plain = make_model(where), make_model(where)
    fit(whole, images(augment))
    fit(plain, images(None))
    fit(make_model(where), images(augment), epochs=2, checkpoint=tmp_path)
    torch.manual_seed(7)
    parts = make_model(where)
    fit(parts, images(augment), checkpoint=tmp_path)
    assert_close(weights(parts), weights(whole), rtol=0, atol=0)
    assert not torch.equal(weights(whole), weights(plain))


class Interrupting:
    """Shifts images; the process receives a signal when the n-th batch is augmented."""

    def __init__(self, n):
        self._left = n

    def __call__(self, pixels):
        self._left -= 1
        if self._left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return Augmentation(crop=2)(pixels)


def test_resuming_within_an_epoch_gives_the_same_bits(tmp_path):
    with pytest.raises(SystemExit):
        fit(make_model(), images(Interrupting(5)), checkpoint=tmp_path)
    assert read_newest(tmp_path).data["done"] == 2
    whole, rest = make_model(), make_model()
    fit(whole, images(Interrupting(0)))
    fit(rest, images(Interrupting(0)), checkpoint=tmp_path)
    assert_close(weights(rest), weights(whole), rtol=0, atol=0)


def test_another_augmentation_is_another_run(tmp_path):
    fit(make_model(), images(Augmentation(crop=2)), epochs=2, checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"belongs to another run.*'augmentation'.*crop=2.*crop=3"):
        fit(make_model(), images(Augmentation(crop=3)), checkpoint=tmp_path)
    with pytest.raises(ValueError, match=r"'augmentation'.*now missing"):
        fit(make_model(), images(None), checkpoint=tmp_path)
    fit(make_model(), images(Augmentation(crop=2)), checkpoint=tmp_path)


def test_trying_the_draws_leaves_the_random_numbers_alone():
    """With the default number of draws, the first batch is tried; that must not cost numbers."""

    def augmented(draws):
        seen = []

        def augment(pixels):
            changed = Augmentation(crop=2)(pixels)
            seen.append(changed)
            return changed

        where = {"3": tacit.LowRank(2)}
        fit(make_model(where), images(augment), epochs=1, draws=draws, batch_size=48)
        return seen

    assert torch.equal(augmented(None)[-1], augmented(8)[0])


def test_a_loader_would_not_augment():
    with pytest.raises(ValueError, match="a DataLoader doesn't augment Images"):
        fit(make_model(), DataLoader(images(Augmentation(crop=2)), 16))
    fit(make_model(), DataLoader(images(None), 16), epochs=1)
