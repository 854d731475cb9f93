"""Data to train on."""

from tacit.data.digits import digits

__all__ = ["digits"]
