"""Last-layer Laplace approximation: a Gaussian from the curvature at the trained weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit.data.batches import Batches
from tacit.inference.functions import Predictor, tensor_of
from tacit.inference.headers import describe_network
from tacit.likelihood import Bernoulli, Categorical, DiscreteLikelihood, Gaussian, Likelihood
from tacit.methods.base import Method
from tacit.methods.task import Task

PRECISIONS = torch.logspace(-4, 6, 41, dtype=torch.float64)  # candidate precisions of the prior


@dataclass(frozen=True)
class Laplace(Method):
    """A trained network with a Gaussian over its last layer (Daxberger et al., 2021).

    The precision is the prior's plus the generalized Gauss-Newton matrix of the loss, which is
    approximated by a Kronecker product A x G (KFAC): A = sum of phi phi^T over the features of all
    examples, G = mean curvature of the loss in the outputs.

    Args:
        tune: How the prior's precision is chosen: "grid", by NLL on validation data, or "marglik",
            by the marginal likelihood of the training data.
        predictive: "probit": a single function whose logits shrink with their variance, in closed
            form; its `mutual_information` is 0. "samples": functions are drawn. Regression always
            draws functions.
    """

    tune: Literal["grid", "marglik"] = "grid"
    predictive: Literal["probit", "samples"] = "probit"

    def __post_init__(self) -> None:
        if self.tune not in ("grid", "marglik") or self.predictive not in ("probit", "samples"):
            raise ValueError(
                "Laplace: expected tune 'grid' or 'marglik' and predictive 'probit' or 'samples', "
                f"received {self.tune!r} and {self.predictive!r}."
            )

    @property
    def needs_validation(self) -> bool:
        return self.tune == "grid"

    def learn(self, task: Task) -> LastLayer:
        net = task.trained().eval()
        size = task.settings.get("batch_size", 128)
        if isinstance(task.likelihood, DiscreteLikelihood):
            task.likelihood.averaging = "probs"
        predictor = LastLayer(net, task.likelihood, probit=self.predictive == "probit")
        data = Batches("train", task.train, size)
        log_likelihood = predictor.fit_curvature(data)
        if self.tune == "marglik":
            scores = [log_likelihood + predictor.log_evidence(p) for p in PRECISIONS.tolist()]
            predictor.set_precision(PRECISIONS[int(torch.tensor(scores).argmax())].item())
        else:
            held_out = Batches("validation", task.validation, size)
            losses = predictor.losses(held_out, PRECISIONS.tolist())
            predictor.set_precision(PRECISIONS[int(losses.argmin())].item())
        return predictor


class LastLayer(Predictor):
    """Predictor: a network with a Gaussian over its last linear layer.

    With A = Q_A D_A Q_A^T and G = Q_G D_G Q_G^T the covariance has eigenvectors Q_A x Q_G and
    eigenvalues 1 / (d_A d_G + precision). For features phi the covariance of the outputs is
    Q_G diag(v) Q_G^T with v_j = sum_i (Q_A^T phi)_i^2 / (d_Ai d_Gj + precision). This needs neither
    the layer's full covariance nor a C x C matrix per example.

    Args:
        net: The network.
        likelihood: Likelihood of its outputs.
        probit: Whether to scale logits in closed form instead of drawing functions.
    """

    input_values: Tensor
    input_vectors: Tensor
    output_values: Tensor
    output_vectors: Tensor
    precision: Tensor

    def __init__(self, net: nn.Module, likelihood: Likelihood, *, probit: bool = True) -> None:
        super().__init__(likelihood)
        self.net = net
        self.probit = probit and isinstance(likelihood, DiscreteLikelihood)
        self.last = last_linear(net)
        layer = self.last_layer
        inputs = layer.in_features + (layer.bias is not None)
        for name, n in (("input", inputs), ("output", layer.out_features)):
            self.register_buffer(f"{name}_values", torch.zeros(n, dtype=torch.float64))
            self.register_buffer(f"{name}_vectors", torch.eye(n, dtype=torch.float64))
        self.register_buffer("precision", torch.ones((), dtype=torch.float64))

    @property
    def last_layer(self) -> nn.Linear:
        """The random layer."""
        layer = self.net.get_submodule(self.last)
        assert isinstance(layer, nn.Linear)
        return layer

    @torch.no_grad()
    def features(self, *inputs: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
        """Return features (B, D), with a column of ones for the bias, and outputs (B, C)."""
        seen: list[Tensor] = []
        handle = self.last_layer.register_forward_hook(lambda _m, args, _o: seen.append(args[0]))
        try:
            outputs = tensor_of(self.net(*inputs, **keywords))
        finally:
            handle.remove()
        phi = seen[0].double()
        if phi.ndim != 2:
            raise ValueError(
                "Laplace: expected features (B, D) before the last layer, received "
                f"{tuple(phi.shape)}."
            )
        if self.last_layer.bias is not None:
            phi = torch.cat([phi, torch.ones_like(phi[:, :1])], -1)
        return phi, outputs.double()

    def fit_curvature(self, data: Batches) -> float:
        """Compute A and G from training data; return the log-likelihood of the data."""
        total_a: Tensor | float = 0.0
        total_g: Tensor | float = 0.0
        count, log_likelihood = 0, 0.0
        for batch in data.epoch():
            phi, outputs = batch.call(self.features, self.last_layer.weight)
            total_a = total_a + phi.T @ phi
            total_g = total_g + curvature(self.likelihood, outputs)
            loss = self.likelihood.loss(outputs, batch.targets.to(outputs.device), samples=False)
            log_likelihood -= loss.item() * len(phi)
            count += len(phi)
        for name, matrix in (("input", total_a), ("output", total_g / count)):
            values, vectors = torch.linalg.eigh(matrix)
            setattr(self, f"{name}_values", values.clamp_min(0))
            # Row-major, as after loading from a file: the same layout gives the same bits.
            setattr(self, f"{name}_vectors", vectors.contiguous())
        return log_likelihood

    def log_evidence(self, precision: float) -> float:
        """Return the log marginal likelihood minus the log-likelihood, for a prior precision."""
        weights = [p.detach().double() for p in self.last_layer.parameters()]
        norm = sum(w.square().sum().item() for w in weights)
        values = torch.outer(self.input_values, self.output_values) + precision
        size = values.numel()
        return 0.5 * (size * math.log(precision) - precision * norm - values.log().sum().item())

    def losses(self, data: Batches, precisions: list[float]) -> Tensor:
        """Return the mean NLL of data for each precision, from one pass over the data."""
        totals, count = torch.zeros(len(precisions), dtype=torch.float64), 0
        for batch in data.epoch():
            phi, outputs = batch.call(self.features, self.last_layer.weight)
            targets = batch.targets.to(outputs.device)
            for i, precision in enumerate(precisions):
                self.set_precision(precision)
                drawn = self.deviations(32, torch.Generator(phi.device).manual_seed(0))
                found = self.likelihood.predictive(self.outputs(phi, outputs, drawn))
                totals[i] += found.errors(targets)["nll"].sum().item()
            count += len(phi)
        return totals / count

    def set_precision(self, precision: float) -> None:
        """Set the precision of the prior."""
        self.precision.fill_(precision)

    def variances(self, phi: Tensor) -> Tensor:
        """Return the variances of the outputs, (B, C), for features (B, D)."""
        squares = (phi @ self.input_vectors).square()
        inverse = 1 / (torch.outer(self.input_values, self.output_values) + self.precision)
        return squares @ inverse @ self.output_vectors.square().T

    def deviations(self, samples: int, generator: torch.Generator | None) -> Tensor | None:
        """Draw deviations from the layer's weights, (M, D, C); None in probit mode."""
        if self.probit:
            return None
        inverse = 1 / (torch.outer(self.input_values, self.output_values) + self.precision)
        z = torch.randn(
            (samples, *inverse.shape), generator=generator, dtype=inverse.dtype,
            device=inverse.device,
        )  # fmt: skip
        return self.input_vectors @ (z * inverse.sqrt()) @ self.output_vectors.T

    def outputs(self, phi: Tensor, outputs: Tensor, deviations: Tensor | None) -> Tensor:
        """Return the outputs of the functions, (M, B, C); M is 1 in probit mode."""
        if deviations is None:
            return (outputs / (1 + math.pi / 8 * self.variances(phi)).sqrt())[None]
        return outputs + phi @ deviations

    def functions(
        self, *, samples: int, chunk_size: int | None, generator: torch.Generator | None
    ) -> Callable[..., Tensor]:
        drawn = self.deviations(samples, generator)

        def call(*inputs: Any, **keywords: Any) -> Tensor:
            phi, outputs = self.features(*inputs, **keywords)
            return self.outputs(phi, outputs, drawn).to(self.last_layer.weight.dtype)

        return call

    def describe(self) -> dict[str, Any]:
        return {"network": describe_network(self.net), "probit": self.probit}

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> LastLayer:
        return cls(make_net(), likelihood, probit=given["probit"])


def last_linear(net: nn.Module) -> str:
    """Return the name of a network's last linear layer."""
    names: list[str] = [
        name for name, module in net.named_modules() if isinstance(module, nn.Linear)
    ]
    if not names:
        raise ValueError("Laplace: the network has no linear layer.")
    return names[-1]


def curvature(likelihood: Likelihood, outputs: Tensor) -> Tensor:
    """Return the Hessian of the loss in the outputs, summed over examples, (C, C)."""
    if isinstance(likelihood, Categorical):
        p = F.softmax(outputs, -1)
        return torch.diag(p.sum(0)) - p.T @ p
    if isinstance(likelihood, Bernoulli):
        p = outputs.sigmoid()
        return torch.diag((p * (1 - p)).sum(0))
    if isinstance(likelihood, Gaussian):
        scale = likelihood.scale.detach().double()
        eye = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
        return len(outputs) * eye / scale.square()
    raise TypeError(f"Laplace: no curvature for {likelihood!r}.")
