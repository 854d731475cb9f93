"""Split conformal prediction: sets and intervals that contain the target with a stated probability.

Thresholds are order statistics of scores on calibration data. If these and the new example are
exchangeable, the k-th smallest of n scores, k = ceil((n + 1) level), is at least the new example's
score with probability at least `level`, whatever the model (Vovk et al., 2005; Lei et al., 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal, TypeAlias, get_args, overload

import torch
from torch import Tensor

from tacit._support import checks
from tacit.inference.prediction_sets import PredictionIntervals, PredictionSets, whole_labels
from tacit.likelihood.predictive import (
    BinaryPredictive,
    ClassPredictive,
    Predictive,
    RegressionPredictive,
    counted,
)
from tacit.metrics.arguments import Values, between_0_and_1

ClassScore: TypeAlias = Literal["lac", "aps", "raps"]
RegressionScore: TypeAlias = Literal["std", "quantiles"]

PENALTY, FREE = 0.01, 5  # of "raps"
ROUNDING = 16  # units of rounding by which sets and intervals are larger


@dataclass(frozen=True, eq=False)
class ConformalSets:
    """Turns predictions of classes into sets of classes; made by `conformal`.

    Attributes:
        level: Probability that a set contains the true class.
        score: The nonconformity score.
        thresholds: Largest score of a class in the set, in a shape that broadcasts to the classes
            of an example: one for each label of an example, (..., 1), or for each class, (..., C).
        shape: Shape of an example's probabilities, (..., C).
        penalty: Of "raps": added to the score for each rank beyond `free`.
        free: Of "raps": number of classes without penalty.
        allow_empty: Whether sets may be empty; otherwise they contain the most probable class.
    """

    level: float
    score: ClassScore
    thresholds: Tensor
    shape: tuple[int, ...]
    penalty: float
    free: int
    allow_empty: bool

    def __call__(self, prediction: ClassPredictive | BinaryPredictive) -> PredictionSets:
        """Return a set of classes for each example."""
        own = _classes(prediction)
        scores = class_scores(own, self.score, self.penalty, self.free)
        if scores.shape[1:] != self.shape:
            raise ValueError(
                f"conformal: expected probabilities of shape {self.shape} for each example, as in "
                f"the calibration, received {tuple(scores.shape[1:])}."
            )
        members = scores <= self.thresholds + _slack(own.log_probs)
        if not self.allow_empty:
            members = members.scatter(-1, scores.argmin(-1, keepdim=True), True)
        return PredictionSets(members, self.level, own.class_names, own.ignore_index)


@dataclass(frozen=True, eq=False)
class ConformalIntervals:
    """Turns predictions of numbers into intervals; made by `conformal`.

    Attributes:
        level: Probability that an interval, or a box of intervals, contains the target.
        score: The nonconformity score.
        thresholds: Largest score inside, one per output, (...), or one for all.
        shape: Shape of an example's predictions, (...).
        joint: Whether the intervals of an example contain all its targets at once.
    """

    level: float
    score: RegressionScore
    thresholds: Tensor
    shape: tuple[int, ...]
    joint: bool

    def __call__(self, prediction: RegressionPredictive) -> PredictionIntervals:
        """Return an interval for each target."""
        if not isinstance(prediction, RegressionPredictive):
            raise TypeError(
                "conformal: expected predictions of numbers, as in the calibration, received "
                f"{type(prediction).__name__}."
            )
        if prediction.mean.shape[1:] != self.shape:
            raise ValueError(
                f"conformal: expected predictions of shape {self.shape} for each example, as in "
                f"the calibration, received {tuple(prediction.mean.shape[1:])}."
            )
        thresholds = self.thresholds.to(prediction.mean)
        if self.score == "std":
            width = thresholds * _positive(prediction.std)
            width = width + _slack(width) * (width + prediction.mean.abs())
            return PredictionIntervals(
                prediction.mean - width, prediction.mean + width, self.level, self.joint
            )
        low, high = prediction.interval(self.level)
        thresholds = thresholds * _units(prediction, self.joint)
        sizes = thresholds.abs() + torch.maximum(low.abs(), high.abs())
        thresholds = thresholds + _slack(low) * sizes
        middle = (low + high) / 2  # a negative threshold shrinks intervals at most to a point
        low = torch.minimum(low - thresholds, middle)
        return PredictionIntervals(
            low, torch.maximum(high + thresholds, middle), self.level, self.joint
        )


@overload
def conformal(
    prediction: ClassPredictive | BinaryPredictive,
    targets: Values,
    level: float = ...,
    *,
    score: ClassScore | None = ...,
    by_class: bool = ...,
    penalty: float | None = ...,
    free: int | None = ...,
    allow_empty: bool = ...,
) -> ConformalSets: ...
@overload
def conformal(
    prediction: RegressionPredictive,
    targets: Values,
    level: float = ...,
    *,
    score: RegressionScore | None = ...,
    joint: bool = ...,
) -> ConformalIntervals: ...
def conformal(
    prediction: Predictive,
    targets: Values,
    level: float = 0.9,
    *,
    score: ClassScore | RegressionScore | None = None,
    by_class: bool = False,
    penalty: float | None = None,
    free: int | None = None,
    allow_empty: bool = False,
    joint: bool = False,
) -> ConformalSets | ConformalIntervals:
    """Calibrate sets of classes, or intervals, that contain the target with a stated probability.

    The probability is over calibration data and new examples together, which have to be
    exchangeable: new examples from another distribution have no guarantee. The calibration data
    must not have been used for training, nor for a temperature.

    Several labels per example, such as those of pixels, have a threshold for each position. Labels
    to be ignored don't count; sets contain all classes at positions with too few others.

    Args:
        prediction: Predictions for the calibration data, by any method.
        targets: Their targets.
        level: Probability with which sets and intervals contain the target, at least.
        score: What is compared with a threshold. For classes "lac" (1 - probability, the default:
            the smallest sets on average if the probabilities are right; Sadinle et al., 2019),
            "aps" (the total probability of the classes at least as probable: larger sets for harder
            examples; Romano et al., 2020) or "raps" (the same with a penalty for unlikely classes;
            Angelopoulos et al., 2021), both without randomisation. For numbers "std" (the error in
            units of the predictive standard deviation, the default) or "quantiles" (the distance to
            the central interval; Romano et al., 2019; for `joint` boxes in units of the standard
            deviation, because outputs may differ in theirs).
        by_class: For classes: whether the probability holds for each class separately, which needs
            enough calibration examples of each (Mondrian). With several labels per example it holds
            for each class at each position; where a class has too few labels, it is in all sets.
        penalty: For "raps": added to the score for each rank beyond `free`, 0.01 by default.
        free: For "raps": number of classes without penalty, 5 by default.
        allow_empty: For classes: whether sets may be empty. Otherwise the most probable class is
            added, which can only increase the probability.
        joint: For several outputs per example: whether their intervals contain all targets of an
            example at once, with the stated probability. Otherwise it holds for each output.

    Returns:
        A function from predictions to `PredictionSets` or `PredictionIntervals`.

    Raises:
        ValueError: If there are too few calibration examples for the level.

    Examples:
        >>> import tacit, torch
        >>> model = tacit.variational(torch.nn.Linear(4, 3), likelihood=tacit.Categorical())
        >>> x, y = torch.randn(200, 4), torch.randint(3, (200,))
        >>> sets = tacit.conformal(tacit.predict(model, x), y, level=0.8)
        >>> found = sets(tacit.predict(model, torch.randn(5, 4)))
        >>> found.members.shape
        torch.Size([5, 3])
    """
    level = between_0_and_1("conformal(level)", level)
    if isinstance(prediction, RegressionPredictive):
        kind = _choice(score or "std", RegressionScore)
        if by_class or allow_empty or penalty is not None or free is not None:
            raise ValueError(
                "by_class, allow_empty, penalty and free apply to predictions of classes only."
            )
        return _calibrated_intervals(prediction, targets, level, kind, joint)
    if joint:
        raise ValueError("joint: applies to predictions of numbers only.")
    own = _classes(prediction)
    kind = _choice(score or "lac", ClassScore)
    if kind != "raps" and (penalty is not None or free is not None):
        raise ValueError('penalty and free apply to score="raps" only.')
    penalty = checks.nonnegative_number("penalty", PENALTY if penalty is None else penalty)
    free = FREE if free is None else free
    if isinstance(free, bool) or not isinstance(free, Integral) or free < 0:
        raise ValueError(f"free: expected an integer of at least 0, received {free!r}.")
    if not len(own):
        threshold(torch.empty(0), level)  # too few
    if isinstance(prediction, BinaryPredictive):
        targets = whole_labels(targets)
    if own.log_probs.isnan().any():
        raise ValueError("conformal: some predictions are NaN.")
    labels = own.checked_labels(targets)
    kept = counted(labels, own.ignore_index)
    scores = class_scores(own, kind, penalty, free)
    true = scores.gather(-1, labels.masked_fill(~kept, 0)[..., None])[..., 0]
    if by_class:
        found = _by_class(own, true, labels.masked_fill(~kept, -1), level)
    elif kept.all():
        found = threshold(true, level)[..., None]
    else:
        found = _threshold_of_counted(true, kept, level)[..., None]
    shape = tuple(scores.shape[1:])
    return ConformalSets(level, kind, found, shape, penalty, int(free), allow_empty)


def _by_class(own: ClassPredictive, true: Tensor, labels: Tensor, level: float) -> Tensor:
    """Return a threshold for each class, (..., C), from the scores of the true classes."""
    names = own.class_names or tuple(map(str, range(own.log_probs.shape[-1])))
    found = [
        threshold(true[labels == k], level, f" of class {name}")
        if true.ndim == 1
        else _threshold_of_counted(true, labels == k, level, f" of class {name} at some position")
        for k, name in enumerate(names)
    ]
    return torch.stack(found, -1)


def _threshold_of_counted(scores: Tensor, kept: Tensor, level: float, of: str = "") -> Tensor:
    """Return the threshold of each position from the labels that count there.

    It is infinite, so that sets contain all classes, at positions with too few labels.

    Args:
        scores: Scores of the calibration examples, (n, ...).
        kept: Whether the label counts, of the same shape.
        level: Probability of a new score not to exceed the threshold.
        of: Which labels, for the error message.
    """
    counts = kept.sum(0)
    most = int(counts.max()) if counts.numel() else 0
    if most < _needed(level):
        return threshold(scores[:most], level, of)  # too few everywhere
    ordered = scores.masked_fill(~kept, math.inf).sort(0).values
    ordered = torch.cat([ordered, torch.full_like(ordered[:1], math.inf)])
    rank = ((counts + 1) * level - 1e-9).ceil().long()
    return ordered.gather(0, torch.where(rank > counts, len(scores), rank - 1)[None])[0]


def _calibrated_intervals(
    prediction: RegressionPredictive,
    targets: Values,
    level: float,
    score: RegressionScore,
    joint: bool,
) -> ConformalIntervals:
    y = prediction.aligned(targets)
    if y.isnan().any():
        raise ValueError("targets: some are NaN; leave these examples out.")
    if prediction.mean.isnan().any() or prediction.std.isnan().any():
        raise ValueError("conformal: some predictions are NaN.")
    if score == "std":
        errors = standardised_errors(prediction, y)
    else:
        low, high = prediction.interval(level)
        errors = torch.maximum(low - y, y - high)
        errors = errors / _units(prediction, joint)
    errors = errors.reshape(len(errors), -1).amax(1) if joint else errors
    shape = tuple(prediction.mean.shape[1:])
    return ConformalIntervals(level, score, threshold(errors, level), shape, joint)


def _slack(values: Tensor) -> float:
    """Return a rounding error in the precision of some values.

    Equal examples have scores that are equal only up to rounding. Many may have that of the
    threshold, and must not fall out of their sets.
    """
    dtypes = values.dtype, torch.float32
    return ROUNDING * min(torch.finfo(dtype).eps for dtype in dtypes)


def standardised_errors(prediction: RegressionPredictive, targets: Tensor) -> Tensor:
    """Return the errors in units of the predictive standard deviations, in their shape."""
    return (targets - prediction.mean).abs() / _positive(prediction.std)


def _units(prediction: RegressionPredictive, joint: bool) -> Tensor:
    """Return units in which the distances of outputs to their intervals are compared."""
    several = joint and prediction.std[:1].numel() > 1
    return _positive(prediction.std) if several else torch.ones_like(prediction.std)


def _positive(std: Tensor) -> Tensor:
    """Return standard deviations that errors can be divided by."""
    return std.clamp_min(torch.finfo(std.dtype).tiny ** 0.5)


def threshold(scores: Tensor, level: float, of: str = "") -> Tensor:
    """Return the ceil((n + 1) level)-th smallest of n scores.

    Args:
        scores: Scores of the calibration examples, (n, ...).
        level: Probability of a new example's score not to exceed it.
        of: Which examples, for the error message.

    Raises:
        ValueError: If n is so small that no score is large enough.
    """
    count = len(scores)
    rank = math.ceil((count + 1) * level - 1e-9)  # 10 * 0.9 is 9, not a little more
    if rank > count:
        raise ValueError(
            f"conformal: a level of {level:g} needs at least {_needed(level)} calibration "
            f"examples{of}, received {count}."
        )
    found: Tensor = scores.kthvalue(rank, dim=0).values
    return found


def _needed(level: float) -> int:
    """Return the smallest number of calibration examples with a threshold."""
    return math.ceil(level / (1 - level) - 1e-9)


def class_scores(
    prediction: ClassPredictive, score: ClassScore, penalty: float = 0.0, free: int = 0
) -> Tensor:
    """Return the nonconformity score of each class, (B, C), in double precision.

    Args:
        prediction: Predictions of classes.
        score: "lac", "aps" or "raps"; see `conformal`.
        penalty: For "raps": added to the score for each rank beyond `free`.
        free: For "raps": number of classes without penalty.
    """
    # Renormalised: in half precision the probabilities do not quite sum to 1.
    probs = torch.softmax(prediction.log_probs.cpu().double(), -1)
    if score == "lac":
        return 1 - probs
    ordered = probs.sort(dim=-1, descending=True, stable=True)
    cumulative = ordered.values.cumsum(-1)
    if score == "raps":
        rank = torch.arange(1, probs.shape[-1] + 1, device=probs.device)
        cumulative = cumulative + penalty * (rank - free).clamp_min(0)
    return torch.empty_like(probs).scatter(-1, ordered.indices, cumulative)


def _classes(prediction: Predictive) -> ClassPredictive:
    if isinstance(prediction, BinaryPredictive):
        return prediction.two_classes
    if isinstance(prediction, ClassPredictive):
        return prediction
    raise TypeError(
        f"conformal: expected predictions from tacit.predict, received {type(prediction).__name__}."
    )


def _choice(score: str, kinds: object) -> Any:
    if score not in get_args(kinds):
        raise ValueError(f"score: expected {', '.join(get_args(kinds))}; received {score!r}.")
    return score
