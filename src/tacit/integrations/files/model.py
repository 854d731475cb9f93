"""A trained model with all that predictions for files need, in one file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from tacit._support import files, schema
from tacit._support.files import check_header
from tacit.calling import Variational
from tacit.inference import Predictor, predict
from tacit.inference import load as load_model
from tacit.inference import save as save_model
from tacit.inference.held_out_scores import regions
from tacit.inference.prediction_sets import PredictionIntervals, PredictionSets
from tacit.integrations.files.inputs import RULE as INPUTS
from tacit.integrations.files.inputs import ImageInputs, TableInputs, inputs_from_dict
from tacit.likelihood import Categorical, ContinuousLikelihood
from tacit.likelihood.predictive import ClassPredictive, RegressionPredictive
from tacit.methods import saving as methods
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
        model: The variational model, or the predictor of another method, with its likelihood,
            classes and temperature.
        inputs: What the inputs are.
        target: Name of the target.
        seed: Seed of the functions that predictions draw: they are the same in each call.
        scores: Nonconformity scores of held-out examples, for sets and intervals; None if too few
            examples were held out.
        foreign: Largest epistemic uncertainty of an input that is not foreign, or None.

    Examples:
        >>> import pandas, tempfile
        >>> from tacit.integrations.files import Settings, train_table
        >>> table = pandas.DataFrame({"size": range(90), "large": 46 * ["no"] + 44 * ["yes"]})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "homes.csv"
        ...     table.to_csv(path, index=False)
        ...     model = train_table(path, "large", settings=Settings(epochs=5, progress=False))
        ...     again = FileModel.load(model.save(Path(folder) / "homes.safetensors"))
        >>> prediction = again.predict(again.inputs.encoded({"size": [1.0, 80.0]}))
        >>> again.task, again.classes, prediction.probs.shape
        ('classification', ('no', 'yes'), torch.Size([2, 2]))
        >>> again.regions(prediction, level=0.8).members.shape
        torch.Size([2, 2])
    """

    model: Variational | Predictor
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
        if self.scores is not None:
            return regions(prediction, self.scores, level)
        level = between_0_and_1("level", level)
        if isinstance(prediction, ClassPredictive):
            return _likeliest(prediction, level)
        return PredictionIntervals(*prediction.interval(level), level)

    def is_uncertain(self, prediction: ClassPredictive | RegressionPredictive) -> Tensor:
        """Return whether functions disagree more than on 99 % of held-out examples, (B,)."""
        found = epistemic(prediction)
        return found > self.foreign if self.foreign is not None else torch.zeros_like(found) > 0

    def save(self, path: str | Path) -> Path:
        """Write the model to a file without pickle: safetensors and JSON.

        `tacit.load` reads the same file as a variational model; `tacit.methods.load` that of
        another method as a predictor.
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
        if isinstance(self.model, Variational):
            return save_model(self.model, path, preprocessing=preprocessing)
        return methods.save(self.model, path, preprocessing=preprocessing)

    @classmethod
    def load(cls, path: str | Path) -> FileModel:
        """Return the model that `save` wrote; nothing in the file is executed.

        Raises:
            FileNotFoundError: If there is no such file.
            ValueError: If the file is damaged, or was written by something else.
        """
        path = Path(path)
        another = files.holds(path, methods.KEY)
        model = methods.load(path) if another else load_model(path)
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


def functions_in(prediction: ClassPredictive | RegressionPredictive) -> int:
    """Return the number of functions that predictions come from."""
    outputs = prediction.logits if isinstance(prediction, ClassPredictive) else prediction.means
    return len(outputs)


def _likeliest(prediction: ClassPredictive, level: float) -> PredictionSets:
    """Return the most probable classes that together have a probability of at least `level`."""
    ordered = prediction.probs.sort(-1, descending=True)
    before = ordered.values.cumsum(-1) - ordered.values
    members = torch.zeros_like(before, dtype=torch.bool)
    members = members.scatter(-1, ordered.indices, before < level)
    return PredictionSets(members, level, prediction.class_names)


def _check_fits(
    path: object, model: Variational | Predictor, inputs: TableInputs | ImageInputs
) -> None:
    """Raise ValueError unless inputs and likelihood fit the model of the file."""
    likelihood = model.likelihood
    named = isinstance(likelihood, Categorical) and likelihood.class_names is not None
    arguments = _network_arguments(model)
    if isinstance(inputs, TableInputs):
        fits = named or isinstance(likelihood, ContinuousLikelihood)
        fits = fits and arguments.get("inputs") == len(inputs.encoder.features)
        itself = isinstance(model, Variational) and model.inputs is not None
        fits = fits and itself == (inputs.scaling is None)
    else:
        fits = named and arguments.get("channels") == inputs.channels
    if not fits:
        raise ValueError(f"{path} is damaged: its model doesn't fit its description of inputs.")


def _network_arguments(model: Variational | Predictor) -> Mapping[str, Any]:
    if isinstance(model, Variational):
        found: Mapping[str, Any] = getattr(model.module, "arguments", {})
        return found
    found = model.describe()["network"]
    return found.get("arguments", {})  # type: ignore[no-any-return]
