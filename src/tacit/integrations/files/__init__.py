"""Models trained from files, for `tacit train`, `tacit predict` and `tacit evaluate`."""

from tacit.integrations.files.evaluation import Evaluation, evaluate_file
from tacit.integrations.files.learning import Settings
from tacit.integrations.files.model import FileModel
from tacit.integrations.files.prediction import Predicted, predict_file
from tacit.integrations.files.training import train_images, train_table

__all__ = [
    "Evaluation",
    "FileModel",
    "Predicted",
    "Settings",
    "evaluate_file",
    "predict_file",
    "train_images",
    "train_table",
]
