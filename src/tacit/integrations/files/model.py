"""A trained model with all that predictions for files need, in one file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tacit._support import schema
from tacit._support.files import check_header
from tacit.calling import Variational
from tacit.inference import load as load_model
from tacit.inference import predict
from tacit.inference import save as save_model
from tacit.inference.conformal_prediction import (
    ConformalIntervals,
    ConformalSets,
    class_scores,
    threshold,
)
from tacit.inference.prediction_sets import PredictionIntervals, PredictionSets
from tacit.integrations.files.inputs import RULE as INPUTS
from tacit.integrations.files.inputs import ImageInputs, TableInputs, inputs_from_dict
from tacit.likelihood import Categorical, ContinuousLikelihood
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive
from tacit.metrics.arguments import between_0_and_1

KEY = "files"  # entry of the preprocessing
SAMPLES = 32
QUANTILE = 0.99  # of held-out uncertainties, above which an input is foreign

RULE = schema.record(
    {
        "inputs": INPUTS,
        "target": schema.text,
        "seed": schema.integer(0, 2**40),
        "scores": schema.optional(schema.list_of(schema.number(0))),
        "foreign": schema.optional(schema.number(0)),
    }
)


@dataclass(frozen=True, eq=False)
class FileModel:
    """A trained model for rows of tables or images, made by `train_table` or `train_images`.

    Attributes:
        model: The variational model, with its likelihood, classes and temperature.
        inputs: What the inputs are.
        target: Name of the target.
        seed: Seed of the functions that predictions draw: they are the same in each call.
        scores: Nonconformity scores of held-out examples, for sets and intervals; None if too few
            examples were held out.
        foreign: Largest epistemic uncertainty of an input that is not foreign, or None.
    """

    model: Variational
    inputs: TableInputs | ImageInputs
    target: str
    seed: int = 0
    scores: Tensor | None = None
    foreign: float | None = None

    @property
    def task(self) -> Literal["classification", "regression"]:
        """What is predicted."""
        return "classification" if isinstance(self.model.likelihood, Categorical) else "regression"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes; none for regression."""
        likelihood = self.model.likelihood
        return (likelihood.class_names or ()) if isinstance(likelihood, Categorical) else ()

    def describe_regions(self, level: float) -> str:
        """Return what sets or intervals of this level are, in a sentence."""
        what = "sets" if self.classes else "intervals"
        if self.scores is not None:
            return (
                f"{what} contain the target with probability {level:g} or more for inputs like "
                f"those of training (conformal, from {len(self.scores)} held-out examples)"
            )
        return (
            f"{what} have probability {level:g} by the model's own account (predictive): too few "
            "examples were held out for a guarantee"
        )

    def predict(self, inputs: Any) -> ClassPredictive | RegressionPredictive:
        """Return the predictions for encoded rows, (B, features), or for images."""
        generator = torch.Generator().manual_seed(self.seed)
        found = predict(self.model, inputs, samples=SAMPLES, generator=generator, batch_size=256)
        assert isinstance(found, ClassPredictive | RegressionPredictive)
        return found

    def regions(
        self, prediction: ClassPredictive | RegressionPredictive, level: float
    ) -> PredictionSets | PredictionIntervals:
        """Return sets of classes, or intervals, that contain the target with a probability.

        They are conformal if examples were held out for them. Otherwise sets hold the most probable
        classes that together have this probability, and intervals are those of the predictive
        distribution.

        Args:
            prediction: Predictions of this model.
            level: The probability.

        Raises:
            ValueError: If too few examples were held out for the level.
        """
        level = between_0_and_1("level", level)
        shape: tuple[int, ...]
        if isinstance(prediction, ClassPredictive):
            if self.scores is None:
                return _likeliest(prediction, level)
            found, shape = threshold(self.scores, level)[..., None], prediction.probs.shape[1:]
            sets = ConformalSets(level, "lac", found, shape, 0.0, 0, allow_empty=False)
            return sets(prediction)
        if self.scores is None:
            return PredictionIntervals(*prediction.interval(level), level)
        shape = prediction.mean.shape[1:]
        return ConformalIntervals(level, "std", threshold(self.scores, level), shape, joint=False)(
            prediction
        )

    def is_uncertain(self, prediction: ClassPredictive | RegressionPredictive) -> Tensor:
        """Return whether functions disagree more than on 99 % of held-out examples, (B,)."""
        found = epistemic(prediction)
        return found > self.foreign if self.foreign is not None else torch.zeros_like(found) > 0

    def save(self, path: str | Path) -> Path:
        """Write the model to a file without pickle: safetensors and JSON.

        `tacit.load` reads the same file as a variational model.
        """
        given = {
            "inputs": self.inputs.to_dict(),
            "target": self.target,
            "seed": self.seed,
            "scores": None if self.scores is None else self.scores.tolist(),
            "foreign": self.foreign,
        }
        RULE("save", given)
        preprocessing = {**(self.model.preprocessing or {}), KEY: given}
        return save_model(self.model, path, preprocessing=preprocessing)

    @classmethod
    def load(cls, path: str | Path) -> FileModel:
        """Return the model that `save` wrote; nothing in the file is executed.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or was written by something else.
        """
        model = load_model(path)
        given = (model.preprocessing or {}).get(KEY)
        if given is None:
            raise ValueError(
                f"{path} holds a model that was not trained from files; expected the file of "
                "`tacit train`. Use tacit.load in Python."
            )
        check_header(path, given, RULE)
        try:
            inputs = inputs_from_dict(given["inputs"])
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}") from error
        _check_fits(path, model, inputs)
        scores = given["scores"]
        return cls(
            model, inputs, given["target"], given["seed"],
            None if scores is None else torch.tensor(scores, dtype=torch.float64),
            given["foreign"],
        )  # fmt: skip


def epistemic(prediction: ClassPredictive | RegressionPredictive) -> Tensor:
    """Return how much functions disagree about each example, (B,)."""
    if isinstance(prediction, ClassPredictive):
        return prediction.mutual_information
    return prediction.epistemic_std.reshape(len(prediction))


def nonconformity(prediction: ClassPredictive | RegressionPredictive, targets: Tensor) -> Tensor:
    """Return the scores of held-out examples that decide sets or intervals, (B,), sorted."""
    if isinstance(prediction, ClassPredictive):
        scores = class_scores(prediction, "lac").gather(-1, targets[:, None].cpu())[:, 0]
    else:
        errors = (prediction.aligned(targets) - prediction.mean).abs() / prediction.std
        scores = errors.reshape(len(prediction))
    return scores.cpu().double().sort().values


def _likeliest(prediction: ClassPredictive, level: float) -> PredictionSets:
    """Return the most probable classes that together have a probability of at least `level`."""
    ordered = prediction.probs.sort(-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    members = torch.zeros_like(before, dtype=torch.bool)
    members = members.scatter(-1, ordered.indices, before < level)
    return PredictionSets(members, level, prediction.class_names)


def _check_fits(path: object, model: Variational, inputs: TableInputs | ImageInputs) -> None:
    """Raise ValueError unless inputs and likelihood fit the model of the file."""
    likelihood = model.likelihood
    named = isinstance(likelihood, Categorical) and likelihood.class_names is not None
    if isinstance(inputs, TableInputs):
        columns = None if model.inputs is None else len(model.inputs.mean)
        fits = columns == len(inputs.encoder.features)
        fits = fits and (named or isinstance(likelihood, ContinuousLikelihood))
    else:
        arguments: Any = getattr(model.module, "arguments", {})
        fits = named and arguments.get("channels") == inputs.channels
    if not fits:
        raise ValueError(f"{path} is damaged: its model doesn't fit its description of inputs.")
