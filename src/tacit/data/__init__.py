"""Data to train on."""

from tacit.data.digits import digits
from tacit.data.images import Images
from tacit.data.photos import photo_patches

__all__ = ["Images", "digits", "photo_patches"]
