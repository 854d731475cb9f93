"""Datasets: downloaded once, verified, held in memory as bytes, with fixed splits."""

from typing import TYPE_CHECKING

from tacit._support.lazy_imports import lazy_attributes
from tacit.data.images import Images
from tacit.data.splits import Splits

if TYPE_CHECKING:
    from tacit.data.augmentation import Augmentation
    from tacit.data.cache import DataMissingError
    from tacit.data.cifar import cifar10, cifar100
    from tacit.data.corrupted import cifar10_c, cifar100_c, mnist_c, tiny_imagenet_c
    from tacit.data.corruptions import CORRUPTIONS, corrupt
    from tacit.data.digit_set import digits
    from tacit.data.image_folders import image_folder
    from tacit.data.mnist_sets import fashion_mnist, mnist, quickdraw
    from tacit.data.photos import photo_patches
    from tacit.data.table_encoder import TableEncoder
    from tacit.data.tiny_imagenet_sets import tiny_imagenet
    from tacit.data.uci_tables import uci

__all__ = [
    "CORRUPTIONS",
    "Augmentation",
    "DataMissingError",
    "Images",
    "Splits",
    "TableEncoder",
    "cifar10",
    "cifar10_c",
    "cifar100",
    "cifar100_c",
    "corrupt",
    "digits",
    "fashion_mnist",
    "image_folder",
    "mnist",
    "mnist_c",
    "photo_patches",
    "quickdraw",
    "tiny_imagenet",
    "tiny_imagenet_c",
    "uci",
]

# Imported on first use: training needs none of the code that fetches, decodes and corrupts data.
__getattr__ = lazy_attributes(
    "tacit.data",
    {
        "Augmentation": "tacit.data.augmentation:Augmentation",
        "DataMissingError": "tacit.data.cache:DataMissingError",
        "cifar10": "tacit.data.cifar:cifar10",
        "cifar100": "tacit.data.cifar:cifar100",
        "cifar10_c": "tacit.data.corrupted:cifar10_c",
        "cifar100_c": "tacit.data.corrupted:cifar100_c",
        "mnist_c": "tacit.data.corrupted:mnist_c",
        "tiny_imagenet_c": "tacit.data.corrupted:tiny_imagenet_c",
        "CORRUPTIONS": "tacit.data.corruptions:CORRUPTIONS",
        "corrupt": "tacit.data.corruptions:corrupt",
        "digits": "tacit.data.digit_set:digits",
        "image_folder": "tacit.data.image_folders:image_folder",
        "fashion_mnist": "tacit.data.mnist_sets:fashion_mnist",
        "mnist": "tacit.data.mnist_sets:mnist",
        "quickdraw": "tacit.data.mnist_sets:quickdraw",
        "photo_patches": "tacit.data.photos:photo_patches",
        "TableEncoder": "tacit.data.table_encoder:TableEncoder",
        "tiny_imagenet": "tacit.data.tiny_imagenet_sets:tiny_imagenet",
        "uci": "tacit.data.uci_tables:uci",
        "corruptions": "tacit.data.corruptions",
    },
)
