"""Data to train on."""

from tacit.data.digits import digits
from tacit.data.photos import photo_patches

__all__ = ["digits", "photo_patches"]
