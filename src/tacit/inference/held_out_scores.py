"""Scores of held-out examples that are kept with a model, for sets or intervals of any level.

`tacit.conformal` keeps the threshold of one level; these are its default scores before that choice.
"""

from __future__ import annotations

from typing import overload

from torch import Tensor

from tacit.inference.conformal_prediction import (
    ConformalIntervals,
    ConformalSets,
    class_scores,
    standardised_errors,
    threshold,
)
from tacit.inference.prediction_sets import PredictionIntervals, PredictionSets
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive
from tacit.metrics.arguments import between_0_and_1


def nonconformity(prediction: ClassPredictive | RegressionPredictive, targets: Tensor) -> Tensor:
    """Return the scores of held-out examples: "lac" (B,), or "std" in the shape of the means.

    Args:
        prediction: Predictions for the examples.
        targets: Their labels, (B,), or numbers.
    """
    if isinstance(prediction, ClassPredictive):
        return class_scores(prediction, "lac").gather(-1, targets[:, None].cpu())[:, 0]
    return standardised_errors(prediction, prediction.aligned(targets)).cpu().double()


@overload
def regions(prediction: ClassPredictive, scores: Tensor, level: float) -> PredictionSets: ...
@overload
def regions(
    prediction: RegressionPredictive, scores: Tensor, level: float
) -> PredictionIntervals: ...
def regions(
    prediction: ClassPredictive | RegressionPredictive, scores: Tensor, level: float
) -> PredictionSets | PredictionIntervals:
    """Return sets or intervals that contain the target with a probability, for each output.

    Args:
        prediction: Predictions for new examples.
        scores: Scores of held-out examples, from `nonconformity`.
        level: The probability.

    Raises:
        ValueError: If there are too few held-out examples for the level.
    """
    level = between_0_and_1("level", level)
    found = threshold(scores, level)
    if isinstance(prediction, ClassPredictive):
        shape = tuple(prediction.log_probs.shape[1:])
        sets = ConformalSets(level, "lac", found[..., None], shape, 0.0, 0, allow_empty=False)
        return sets(prediction)
    shape = tuple(prediction.mean.shape[1:])
    return ConformalIntervals(level, "std", found, shape, joint=False)(prediction)
