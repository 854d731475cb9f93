r"""Methods for the study of the default against its rivals, for `tacit bench run`.

    tacit bench run --data fashion_mnist,mnist --parametrization sp --seeds 3 --epochs 40 \
        --lr 0.05 --average 0.5 --train-size 10000 --test-size 5000 --corrupted-size 500 \
        --out results/default_study --methods \
        temperature_scaling,swag,laplace_marglik,deep_ensemble,$(python -m benchmarks.default_study)

and for digits with 10 epochs, all images and six seeds. With `--optimizer adamw --lr 0.002` the
same networks train with AdamW, without `--train-size` on all images, and CIFAR-10 is
`--data benchmarks.default_study:photos --epochs 3 --lr 0.1`: each image appears in four versions,
shifted and mirrored at random, in an epoch. All train the same number of steps and average the same
iterates; those with a temperature fit it on the same validation data.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from tacit import first_and_last, models, relative_noise
from tacit.data import Images, Splits, cifar10
from tacit.methods import ImplicitBiasVI, MCDropout, Method
from tacit.studies.bench import Problem

COPIES, SHIFT = 4, 4

default = ImplicitBiasVI()
log_probs = ImplicitBiasVI(averaging="log_probs")
relative_fixed = ImplicitBiasVI(partial(relative_noise, scale=0.5, speed=0.0))
relative_50 = ImplicitBiasVI(partial(relative_noise, scale=0.5, speed=0.001))
relative_50_faster = ImplicitBiasVI(partial(relative_noise, scale=0.5, speed=0.01))
relative_35 = ImplicitBiasVI(partial(relative_noise, scale=0.35, speed=0.001))
relative_25 = ImplicitBiasVI(partial(relative_noise, scale=0.25, speed=0.001))
low_rank = ImplicitBiasVI(rank=3)
paper = ImplicitBiasVI(first_and_last, draws=1, averaging="log_probs")
dropout_05 = MCDropout(0.05, calibrated=True)
dropout_10 = MCDropout(0.1, calibrated=True)
dropout_20 = MCDropout(0.2, calibrated=True)


def shifted_photos() -> Splits:
    """Return CIFAR-10 with several shifted and mirrored versions of each training image."""
    splits = cifar10()
    generator = torch.Generator().manual_seed(0)
    versions = [_shifted(splits.train, generator) for _ in range(COPIES)]
    pixels, targets = torch.cat(versions), splits.train.targets.repeat(COPIES)
    return splits._replace(train=replace(splits.train, pixels=pixels, targets=targets))


def _shifted(images: Images, generator: torch.Generator) -> torch.Tensor:
    pixels, size = images.pixels, images.pixels.shape[-1]
    padded = F.pad(pixels, (SHIFT,) * 4)
    found = torch.empty_like(pixels)
    places = torch.randint((2 * SHIFT + 1) ** 2 * 2, (len(pixels),), generator=generator)
    for place in range((2 * SHIFT + 1) ** 2 * 2):
        row, column = divmod(place // 2, 2 * SHIFT + 1)
        chosen = places == place
        part = padded[chosen, :, row : row + size, column : column + size]
        found[chosen] = part.flip(-1) if place % 2 else part
    return found


def narrow_resnet(width: int = 8) -> models.ResNet18:
    """Return a ResNet-18 with batch norm; channels last trains in three quarters of the time."""
    net = models.ResNet18(10, norm="batch", width=width)
    for parameter in net.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.to(memory_format=torch.channels_last)
    return net


photos = Problem(shifted_photos, narrow_resnet, {"sp": 0.1}, "cifar")

if __name__ == "__main__":
    names = [name for name, value in list(globals().items()) if isinstance(value, Method)]
    print(",".join(f"benchmarks.default_study:{name}" for name in names))
