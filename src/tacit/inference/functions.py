"""Functions drawn from a model, and the predictive distribution they give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias, overload

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.calling import Variational
from tacit.calling.arguments import check_generator
from tacit.calling.caller import in_chunks
from tacit.data.batches import Batch, Batches
from tacit.likelihood import DiscreteLikelihood, Likelihood
from tacit.likelihood.predictive import (
    Averaging,
    BinaryPredictive,
    ClassPredictive,
    Predictive,
    check_averaging,
)

Functions: TypeAlias = Callable[[Batch], Tensor]
"""Maps a batch to the outputs of M functions, (M, B, ...)."""


@dataclass(frozen=True)
class Cost:
    """Cost of training.

    Args:
        parameters: Number of stored entries that prediction needs.
        seconds: Training time, calibration included.
        peak_bytes: Peak memory during training, above the usage before it; NaN if unknown.

    Examples:
        >>> import tacit, torch
        >>> x, y = torch.randn(40, 3), torch.randint(2, (40,))
        >>> make_net = lambda: torch.nn.Linear(3, 2)
        >>> predictor = tacit.methods.DeepEnsemble(5).fit(make_net, (x, y), epochs=1, lr=0.1)
        >>> predictor.cost.parameters  # 8 of each network, 3 of the likelihood
        43
        >>> predictor.cost.seconds > 0
        True
    """

    parameters: int
    seconds: float
    peak_bytes: float


class Predictor(nn.Module, ABC):
    """A distribution over functions in any representation, for `tacit.predict` and `evaluate`.

    Args:
        likelihood: Likelihood of the outputs.

    Examples:
        >>> import tacit, torch
        >>> x, y = torch.randn(40, 3), torch.randint(2, (40,))
        >>> make_net = lambda: torch.nn.Linear(3, 2)
        >>> predictor = tacit.methods.DeepEnsemble(5).fit(make_net, (x, y), epochs=1, lr=0.1)
        >>> functions = predictor.functions(samples=32, chunk_size=None, generator=None)
        >>> functions(x).shape  # an ensemble has a fixed set
        torch.Size([5, 40, 2])
    """

    cost: Cost | None = None
    """Cost of training, if known."""

    preprocessing: dict[str, Any] | None = None
    """Preprocessing of the inputs as JSON-serialisable data, if a file described it."""

    def __init__(self, likelihood: Likelihood) -> None:
        super().__init__()
        self.likelihood = likelihood

    @abstractmethod
    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        """Return a function that maps network inputs to the outputs of M functions, (M, B, ...).

        Args:
            samples: Number of functions to draw; ignored by predictors with a fixed set.
            chunk_size: Number of functions to run at a time, to bound memory.
            generator: Source of randomness.
        """

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return the settings needed to rebuild it, JSON-serialisable, without tensors."""

    @classmethod
    @abstractmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Predictor:
        """Return a predictor with the settings of `describe`, its tensors not yet loaded."""

    def mean_network(self) -> nn.Module:
        """Return a network that represents all functions, whose layers have features.

        Raises:
            TypeError: If there is none, as in an ensemble.
        """
        raise TypeError(
            f"model: {type(self).__name__} has no single network with features; pass one network."
        )

    def tensors(self) -> dict[str, Tensor]:
        """Return all tensors of the predictor by name."""
        return self.state_dict()

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Load the tensors that `tensors` returned."""
        self.load_state_dict(dict(tensors))


@overload
def predict(
    model: nn.Module,
    inputs: Any,
    *,
    samples: int = ...,
    likelihood: Likelihood | None = ...,
    averaging: Averaging | None = ...,
    batch_size: int = ...,
    chunk_size: int | None = ...,
    stream: Literal[False] = ...,
    generator: torch.Generator | None = ...,
) -> Predictive: ...


@overload
def predict(
    model: nn.Module,
    inputs: Any,
    *,
    samples: int = ...,
    likelihood: Likelihood | None = ...,
    averaging: Averaging | None = ...,
    batch_size: int = ...,
    chunk_size: int | None = ...,
    stream: Literal[True],
    generator: torch.Generator | None = ...,
) -> Iterator[Predictive]: ...


def predict(
    model: nn.Module,
    inputs: Any,
    *,
    samples: int = 32,
    likelihood: Likelihood | None = None,
    averaging: Averaging | None = None,
    batch_size: int = 1024,
    chunk_size: int | None = None,
    stream: bool = False,
    generator: torch.Generator | None = None,
) -> Predictive | Iterator[Predictive]:
    """Return the predictive distribution for inputs.

    A variational model draws `samples` functions once and applies the same ones to all inputs; a
    plain network is a single function. The model runs in eval mode, without gradients; its mode is
    restored afterwards.

    Args:
        model: A variational model, a plain network, or a predictor from `tacit.methods`.
        inputs: A tensor or array, or a dict of them for a network with several inputs;
            `tacit.data.Images`, a Dataset or a DataLoader. A pair means inputs and targets, and the
            targets are ignored; pass a tuple of inputs as ((a, b), None).
        samples: Number of functions.
        likelihood: Likelihood of the outputs; the model's own by default. For dense outputs, a
            `Categorical` has to know the class dimension, from `class_dim`, from targets that it
            has seen in training or evaluation, or from `class_names`.
        averaging: How functions are combined into probabilities, "log_probs", "probs" or "logits";
            the likelihood's choice by default.
        batch_size: Inputs per forward pass.
        chunk_size: Number of functions to run at a time, to bound memory: only their weights are
            held at a time.
        stream: Whether to return an iterator over the predictions of each batch, all by the same
            functions, in the memory of one batch. The functions are drawn with the first batch; the
            model is in eval mode until the iterator ends or is closed.
        generator: Source of randomness for drawing the functions.

    Examples:
        >>> import tacit, torch
        >>> net = torch.nn.Linear(4, 3)
        >>> model = tacit.variational(net, likelihood=tacit.Categorical(["a", "b", "c"]), rank=2)
        >>> prediction = tacit.predict(model, torch.randn(5, 4))
        >>> prediction.probs.shape, prediction.mutual_information.shape
        (torch.Size([5, 3]), torch.Size([5]))
        >>> [len(p) for p in tacit.predict(model, torch.randn(5, 4), batch_size=2, stream=True)]
        [2, 2, 1]
    """
    likelihood = likelihood_of(model, likelihood)
    checks.positive_integer("batch_size", batch_size)
    _check_counts(samples, chunk_size)
    if averaging is not None and not isinstance(likelihood, DiscreteLikelihood):
        raise ValueError("averaging: expected a Categorical or Bernoulli likelihood.")
    if averaging is not None:
        check_averaging(averaging)
    batches = Batches("inputs", inputs, batch_size, targets=False)
    drawn = functions_of(model, samples=samples, chunk_size=chunk_size, generator=generator)
    if stream:
        return _stream(drawn, likelihood, averaging, batches)
    with drawn as functions:
        outputs = torch.cat([functions(batch) for batch in batches.epoch()], dim=1)
        whole = None if batches.memory is None else batches.memory.inputs
        return _predictive(outputs, likelihood, averaging, whole)


@torch.no_grad()  # as a decorator: gradients are on again while the generator is suspended
def _stream(
    drawn: AbstractContextManager[Functions],
    likelihood: Likelihood,
    averaging: Averaging | None,
    batches: Batches,
) -> Iterator[Predictive]:
    with drawn as functions:
        for batch in batches.epoch():
            given = None if batches.memory is None else batch.inputs
            yield _predictive(functions(batch), likelihood, averaging, given)


def _predictive(
    outputs: Tensor, likelihood: Likelihood, averaging: Averaging | None, given: Any
) -> Predictive:
    """Return the predictive distribution from outputs (M, B, ...), for inputs given in memory."""
    _check_rows(outputs, given)
    found = likelihood.predictive(outputs)
    if averaging is None:
        return found
    assert isinstance(found, ClassPredictive | BinaryPredictive)
    return replace(found, averaging=averaging)


def _check_rows(outputs: Tensor, given: Any) -> None:
    """Raise ValueError unless a tensor of inputs has one output for each example.

    A single example without the batch dimension, or a list of two examples, which is taken for
    inputs and targets, would give predictions that look right.
    """
    if isinstance(given, Tensor) and outputs.shape[1:2] != given.shape[:1]:
        raise ValueError(
            "inputs: expected the examples in the first dimension, with one output each; inputs of "
            f"shape {tuple(given.shape)} gave outputs of shape {tuple(outputs.shape)}, samples "
            "first. Pass a single example as x[None], a list of examples as a tensor."
        )


def likelihood_of(model: nn.Module, given: Likelihood | None) -> Likelihood:
    """Return the given likelihood if there is one, else the model's own."""
    if not isinstance(model, nn.Module):
        raise TypeError(
            "model: expected a variational model, a network or a predictor of tacit.methods, "
            f"received {type(model).__name__}."
        )
    if given is not None and not isinstance(given, Likelihood):
        raise TypeError(
            "likelihood: expected tacit.Categorical(), tacit.Gaussian() or another likelihood, "
            f"received {given!r}."
        )
    own = given if given is not None else getattr(model, "likelihood", None)
    if not isinstance(own, Likelihood):
        raise ValueError(
            "likelihood: the model has none; pass one, such as likelihood=tacit.Categorical() or "
            "tacit.Gaussian(), or give it to tacit.variational."
        )
    return own


@contextmanager
def functions_of(
    model: nn.Module,
    *,
    samples: int,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Iterator[Functions]:
    """Draw M functions from a model once, for use on many batches; a plain network is one.

    Inside the context the model is in eval mode and gradients are off; on exit both are restored.
    """
    _check_counts(samples, chunk_size)
    like = next(model.parameters(), torch.zeros(()))
    with eval_mode(model):
        functions = _functions(model, samples, chunk_size, generator)
        yield lambda batch: batch.call(functions, like)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Put a model in eval mode and turn gradients off; on exit restore both."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training  # per module: some may have been in eval mode


def _check_counts(samples: int, chunk_size: int | None) -> None:
    checks.positive_integer("samples", samples)
    if chunk_size is not None:
        checks.positive_integer("chunk_size", chunk_size)


def _functions(
    model: nn.Module, samples: int, chunk_size: int | None, generator: torch.Generator | None
) -> Callable[..., Tensor]:
    if isinstance(model, Predictor):
        return model.functions(samples=samples, chunk_size=chunk_size, generator=generator)
    if isinstance(model, Variational):
        return drawn_functions(model, samples, chunk_size, generator)
    return single_function(model)


def drawn_functions(
    model: Variational,
    samples: int,
    chunk_size: int | None = None,
    generator: torch.Generator | None = None,
) -> Callable[..., Tensor]:
    """Draw M functions of a variational model, called as one: inputs -> outputs (M, B, ...).

    With a chunk size only the noise is kept, and the weights are computed again for each chunk and
    call. 1,000 functions of rank 10 keep 10,000 numbers per layer instead of 1,000 copies of it.
    """
    if chunk_size is None:
        weights = model.sample(samples, generator=generator)
        return lambda *inputs, **keywords: tensor_of(model(*inputs, weights=weights, **keywords))
    check_generator(generator)
    distributions = model.distributions
    # In the order of `Variational.sample`, so that the functions don't depend on the chunk size.
    noise = {
        label: distribution.draw_noise((samples,), generator=generator)
        for label, distribution in distributions.items()
    }

    def call(*inputs: Any, **keywords: Any) -> Tensor:
        outputs = []
        for part in in_chunks(noise, chunk_size):
            weights = {
                layer.parameters[tensor]: sampled
                for layer in model.layers
                for tensor, sampled in distributions[layer.label].weights(part[layer.label]).items()
            }
            output = model(*inputs, weights=weights, chunk_size=chunk_size, **keywords)
            outputs.append(tensor_of(output))
        return torch.cat(outputs)

    return call


def single_function(net: nn.Module) -> Callable[..., Tensor]:
    """Return a plain network as a single function: inputs -> outputs (1, B, ...)."""

    def call(*inputs: Any, **keywords: Any) -> Tensor:
        return tensor_of(net(*inputs, **keywords))[None]

    return call


def tensor_of(output: Any) -> Tensor:
    """Return a network's output tensor, or its `logits` entry, as in Hugging Face models."""
    logits = output["logits"] if isinstance(output, dict) and "logits" in output else output
    logits = getattr(logits, "logits", logits)
    if not isinstance(logits, Tensor):
        kind = type(output).__name__
        raise TypeError(f"model: expected a tensor, or one in .logits, as output; received {kind}.")
    return logits
