"""Using a trained model: predictions, scores, calibration, files."""

from tacit.inference.acquisition import acquire
from tacit.inference.calibration import Calibration, calibrate
from tacit.inference.conformal_prediction import conformal
from tacit.inference.distances import FeatureDistance, feature_distance
from tacit.inference.functions import Cost, Predictor, predict
from tacit.inference.prediction_sets import PredictionIntervals, PredictionSets
from tacit.inference.rescaling import rescaled_mean
from tacit.inference.saving import load, save
from tacit.inference.scores import evaluate

__all__ = [
    "Calibration",
    "Cost",
    "FeatureDistance",
    "PredictionIntervals",
    "PredictionSets",
    "Predictor",
    "acquire",
    "calibrate",
    "conformal",
    "evaluate",
    "feature_distance",
    "load",
    "predict",
    "rescaled_mean",
    "save",
]
