"""Data: fetched once and checked, kept in memory as bytes, in parts that are always the same."""

from tacit.data.cache import DataMissingError
from tacit.data.cifar import cifar10, cifar100
from tacit.data.corrupted import cifar10_c, cifar100_c, mnist_c, tiny_imagenet_c
from tacit.data.corruptions import CORRUPTIONS, corrupt
from tacit.data.digits import digits
from tacit.data.images import Images
from tacit.data.mnist_sets import fashion_mnist, mnist, quickdraw
from tacit.data.photos import photo_patches
from tacit.data.splits import Splits
from tacit.data.tiny_imagenet_sets import tiny_imagenet
from tacit.data.uci_tables import uci

__all__ = [
    "CORRUPTIONS",
    "DataMissingError",
    "Images",
    "Splits",
    "cifar10",
    "cifar10_c",
    "cifar100",
    "cifar100_c",
    "corrupt",
    "digits",
    "fashion_mnist",
    "mnist",
    "mnist_c",
    "photo_patches",
    "quickdraw",
    "tiny_imagenet",
    "tiny_imagenet_c",
    "uci",
]
