"""Models trained from files, for `tacit train`, `tacit predict` and `tacit evaluate`."""

from tacit.integrations.files.model import FileModel
from tacit.integrations.files.training import Settings, train_images, train_table

__all__ = ["FileModel", "Settings", "train_images", "train_table"]
