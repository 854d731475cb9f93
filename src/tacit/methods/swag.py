"""SWAG: a Gaussian fitted to the trajectory of SGD (Maddox et al., 2019)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path as Folder
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from tacit._support import checks, files
from tacit._support.private_torch import BatchNorm
from tacit.calling.caller import tracked_statistics
from tacit.data.batches import Batches
from tacit.inference.functions import Predictor, tensor_of
from tacit.inference.headers import describe_network
from tacit.likelihood import Likelihood
from tacit.methods.base import Method
from tacit.methods.task import Task

KEY = "tacit_swag"  # metadata key of the files of collected weights
BATCHES = 50  # batches used to recompute batch-norm statistics


@dataclass(frozen=True)
class SWAG(Method):
    """A Gaussian with the mean, variances and last deviations of the weights along SGD.

    Weights are collected once per epoch during the second half of training. A draw is
    mean + sqrt(scale) (diagonal part + low-rank part), with one low-rank z for all tensors. Batch
    norm needs statistics for each draw, so for networks with batch norm `samples` functions are
    drawn once and stored with their statistics.

    Args:
        rank: Number of deviations in the low-rank part.
        scale: Scale of the covariance.
        samples: Number of functions stored for networks with batch norm.

    Examples:
        >>> import tacit
        >>> train, _, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = SWAG(rank=3).fit(make_net, train, epochs=6, lr=0.1)  # collects 3 times
        >>> tacit.predict(predictor, test[0], samples=8).logits.shape
        torch.Size([8, 797, 10])
    """

    rank: int = 20
    scale: float = 0.5
    samples: int = 32

    def __post_init__(self) -> None:
        checks.positive_integer("SWAG(rank)", self.rank)
        # A Python number, which a file can hold.
        object.__setattr__(self, "scale", checks.positive_number("SWAG(scale)", self.scale))
        checks.positive_integer("SWAG(samples)", self.samples)

    def learn(self, task: Task) -> Path:
        if task.settings.get("epochs") is None:
            raise ValueError(
                "SWAG: expected a number of epochs: it collects weights in their second half."
            )
        net = task.net()
        first = task.settings["epochs"] // 2
        collected = Collected(first, task.settings.get("checkpoint"))
        if task.settings.get("resume") == "never":
            collected.remove()

        def collect(row: dict[str, float], model: nn.Module) -> None:
            collected.add(round(row["epoch"]), flat(net))

        history = task.fit(net, callbacks=[*task.settings.get("callbacks", ()), collect])
        if task.networks is not None:  # it is the plain network of this task
            task.networks.save(net, 0, sum(history["seconds"]))
        task.average("probs")
        seen = collected.until(len(history))
        if not seen:
            raise ValueError(
                "SWAG: training stopped in the first half of its epochs, before any weights were "
                "collected; train without early_stopping, or with fewer epochs."
            )
        stacked = torch.stack(seen)
        mean = stacked.mean(0)
        variance = stacked.var(0, correction=0).clamp_min(1e-30)
        predictor = Path(
            net, task.likelihood, mean, variance, (stacked - mean)[-self.rank :], self.scale
        )
        predictor.keep_statistics(task, self.samples)
        return predictor


class Collected:
    """The weights collected in training, also in files if training can be resumed.

    Args:
        first: Epoch after which weights are collected.
        folder: Folder of the checkpoints of training, or None.
    """

    def __init__(self, first: int, folder: str | os.PathLike[str] | None) -> None:
        self.first = first
        self.folder = None if folder is None else Folder(folder) / "collected"
        self.seen: dict[int, Tensor] = {}

    def add(self, epoch: int, weights: Tensor) -> None:
        """Add the weights after an epoch, before its checkpoint is written."""
        if epoch <= self.first:
            return
        self.seen[epoch] = weights.clone()
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            files.write(self._path(epoch), KEY, {}, {"weights": self.seen[epoch]})

    def until(self, last: int) -> list[Tensor]:
        """Return the weights up to an epoch, those of earlier processes from their files."""
        return [
            self.seen[epoch] if epoch in self.seen else self._read(epoch)
            for epoch in range(self.first + 1, last + 1)
        ]

    def remove(self) -> None:
        """Remove the files of an earlier run."""
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def _read(self, epoch: int) -> Tensor:
        return files.read(self._path(epoch), KEY, "SWAG")[1]["weights"].clone()

    def _path(self, epoch: int) -> Folder:
        assert self.folder is not None
        return self.folder / f"{epoch}.safetensors"


class Path(Predictor):
    """Predictor: functions with Gaussian weights, of diagonal plus low-rank covariance.

    Args:
        net: The network.
        likelihood: Likelihood of its outputs.
        mean: Mean of the weights, (P,).
        variance: Variance of each weight, (P,).
        deviations: Deviations from the mean, (K, P).
        scale: Scale of the covariance.
    """

    mean: Tensor
    variance: Tensor
    deviations: Tensor

    def __init__(
        self,
        net: nn.Module,
        likelihood: Likelihood,
        mean: Tensor,
        variance: Tensor,
        deviations: Tensor,
        scale: float,
    ) -> None:
        super().__init__(likelihood)
        self.net, self.scale = net, scale
        self.register_buffer("mean", mean)
        self.register_buffer("variance", variance)
        self.register_buffer("deviations", deviations)
        self._kept: list[dict[str, Tensor]] = []  # weights and statistics, with batch norm

    def draw(self, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Draw the weights of a function, by name."""
        like = self.mean
        z, low = (
            torch.randn(n, generator=generator, device=like.device, dtype=like.dtype)
            for n in (len(like), len(self.deviations))
        )
        part = low @ self.deviations / max(1, len(self.deviations) - 1) ** 0.5
        weights = self.mean + self.scale**0.5 * (self.variance.sqrt() * z + part)
        return named(self.net, weights)

    def keep_statistics(self, task: Task, samples: int) -> None:
        """Draw functions and store them with their batch-norm statistics, if there are any."""
        self.net.train()
        if not tracked_statistics(self.net):
            return
        data = Batches("train", task.train, task.settings.get("batch_size", 128), shuffle=True)
        for i in range(samples):
            weights = self.draw(torch.Generator(self.mean.device).manual_seed(i))
            self._kept.append({**weights, **self._statistics(weights, data)})

    @torch.no_grad()
    def _statistics(self, weights: dict[str, Tensor], data: Batches) -> dict[str, Tensor]:
        """Return the batch-norm statistics for given weights, averaged over batches."""
        for module in self.net.modules():
            if isinstance(module, BatchNorm):
                module.reset_running_stats()
                module.momentum = None  # cumulative average: equal weight for all batches
        with_weights = partial(_call, self.net, weights)
        for batch in islice(data.epoch(), BATCHES):
            batch.call(with_weights, self.mean)
        return {name: tensor.clone() for name, tensor in tracked_statistics(self.net).items()}

    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        if self._kept and samples > len(self._kept):
            raise ValueError(
                f"samples: expected at most {len(self._kept)}, the functions stored with their "
                f"batch-norm statistics; received {samples}. Use SWAG(samples={samples})."
            )
        device = self.mean.device
        # A seed per function: with a chunk size, weights are drawn again instead of stored.
        seeds = torch.randint(2**62, (samples,), generator=generator, device=device).tolist()

        def draws() -> Iterator[dict[str, Tensor]]:
            return (self.draw(torch.Generator(device).manual_seed(seed)) for seed in seeds)

        stored = self._kept[:samples] or (list(draws()) if chunk_size is None else None)

        def call(*inputs: Any, **keywords: Any) -> Tensor:
            outputs = (
                _call(self.net, weights, *inputs, **keywords) for weights in stored or draws()
            )
            return torch.stack([tensor_of(output) for output in outputs])

        return call

    def _apply(self, *args: Any, **kwargs: Any) -> Any:
        """Apply a function, as `to` does, to all tensors, including those that are not buffers."""
        moved = super()._apply(*args, **kwargs)  # type: ignore[no-untyped-call]
        function = args[0]
        self._kept = [{name: function(t) for name, t in state.items()} for state in self._kept]
        return moved

    def describe(self) -> dict[str, Any]:
        return {
            "network": describe_network(self.net),
            "scale": self.scale,
            "deviations": len(self.deviations),
            "kept": len(self._kept),
        }

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> Path:
        net = make_net()
        mean = flat(net)
        deviations = mean.new_zeros(given["deviations"], len(mean))
        found = cls(net, likelihood, mean, mean.clone(), deviations, given["scale"])
        state = {**named(net, mean), **tracked_statistics(net.train())}
        found._kept = [dict(state) for _ in range(given["kept"])]
        return found

    def tensors(self) -> dict[str, Tensor]:
        kept = {
            f"kept.{i}.{name}": tensor
            for i, state in enumerate(self._kept)
            for name, tensor in state.items()
        }
        return {**super().tensors(), **kept}

    def load_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        self._kept = [
            {name: tensors[f"kept.{i}.{name}"] for name in state}
            for i, state in enumerate(self._kept)
        ]
        own = {name: t for name, t in tensors.items() if not name.startswith("kept.")}
        super().load_tensors(own)


def _call(net: nn.Module, weights: dict[str, Tensor], *inputs: Any, **keywords: Any) -> Any:
    return functional_call(net, weights, inputs, keywords)


def flat(net: nn.Module) -> Tensor:
    """Return the trainable parameters of a network as one vector, (P,)."""
    return torch.cat([p.detach().flatten() for _, p in trained(net)])


def named(net: nn.Module, weights: Tensor) -> dict[str, Tensor]:
    """Split a vector (P,) into the trainable parameters of a network, by name."""
    pairs = list(trained(net))
    parts = weights.split([p.numel() for _, p in pairs])
    return {name: part.reshape(p.shape) for (name, p), part in zip(pairs, parts, strict=True)}


def trained(net: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    """Return the trainable parameters with their names."""
    return ((name, p) for name, p in net.named_parameters() if p.requires_grad)
