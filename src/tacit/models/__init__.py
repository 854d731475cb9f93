"""Plain networks that store their constructor arguments, so that saved models can be rebuilt."""

from tacit.models.base import Rebuildable
from tacit.models.efficientnet import EfficientNetLite0
from tacit.models.lenet import LeNet5
from tacit.models.mlp import MLP
from tacit.models.pretrained import Loaded, load_weights
from tacit.models.resnet import ResNet18, ResNet34, ResNet50
from tacit.models.standardise import Standardise
from tacit.models.vit import ViT

MODELS: dict[str, type[Rebuildable]] = {
    model.__name__: model
    for model in (MLP, LeNet5, ResNet18, ResNet34, ResNet50, EfficientNetLite0, ViT)
}
"""The networks by name, as files name them."""

__all__ = [
    "MLP",
    "MODELS",
    "EfficientNetLite0",
    "LeNet5",
    "Loaded",
    "Rebuildable",
    "ResNet18",
    "ResNet34",
    "ResNet50",
    "Standardise",
    "ViT",
    "load_weights",
]
