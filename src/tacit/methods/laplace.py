"""Last-layer Laplace approximation: a Gaussian from the curvature at the trained weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tacit._support.private_torch import version
from tacit.data.batches import Batch, Batches
from tacit.inference.functions import Predictor, tensor_of
from tacit.inference.headers import describe_network
from tacit.likelihood import Bernoulli, Categorical, DiscreteLikelihood, Gaussian, Likelihood
from tacit.methods.base import Method
from tacit.methods.task import Task

NOT_LINEAR = (
    "Laplace: expected a network whose output is the unmodified output of an nn.Linear layer that "
    "is called once: no activation, view or squeeze after it."
)
PRECISIONS = torch.logspace(-4, 6, 41, dtype=torch.float64)  # candidate precisions of the prior


@dataclass(frozen=True)
class Laplace(Method):
    """A trained network with a Gaussian over its last layer (Daxberger et al., 2021).

    The last layer is the `nn.Linear` whose output is the network's output.

    The precision is the prior's plus the generalized Gauss-Newton matrix of the loss, which is
    approximated by a Kronecker product A x G (KFAC): A = sum of phi phi^T over the features of all
    examples, G = mean curvature of the loss in the outputs.

    Args:
        tune: How the prior's precision is chosen: "grid", by NLL on validation data, or "marglik",
            by the marginal likelihood of the training data.
        predictive: "probit": a single function whose logits shrink with their variance, in closed
            form; its `mutual_information` is 0. "samples": functions are drawn. Regression always
            draws functions.

    Examples:
        >>> import tacit
        >>> train, validation, test = tacit.data.digits()
        >>> make_net = lambda: tacit.models.MLP(64, [32], 10)
        >>> predictor = Laplace().fit(make_net, train, validation, epochs=5, lr=0.1)
        >>> tacit.predict(predictor, test[0]).logits.shape  # one function, with smaller logits
        torch.Size([1, 797, 10])
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
        size = task.settings.get("batch_size", 128)
        data = Batches("train", task.train, size)
        last = checked_output_layer(task, next(data.epoch()))
        net = task.trained().eval()
        task.average("probs")
        predictor = LastLayer(net, task.likelihood, last, probit=self.predictive == "probit")
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
        last: Name of the linear layer whose output is the network's output, from `output_layer`.
        probit: Whether to scale logits in closed form instead of drawing functions.
    """

    input_values: Tensor
    input_vectors: Tensor
    output_values: Tensor
    output_vectors: Tensor
    precision: Tensor

    def __init__(
        self, net: nn.Module, likelihood: Likelihood, last: str, *, probit: bool = True
    ) -> None:
        super().__init__(likelihood)
        self.net = net
        self.probit = probit and isinstance(likelihood, DiscreteLikelihood)
        self.last = last
        layer = self.last_layer
        inputs = layer.in_features + (layer.bias is not None)
        for name, n in (("input", inputs), ("output", layer.out_features)):
            self.register_buffer(f"{name}_values", torch.zeros(n, dtype=torch.float64))
            self.register_buffer(f"{name}_vectors", torch.eye(n, dtype=torch.float64))
        self.register_buffer("precision", torch.ones((), dtype=torch.float64))

    @property
    def last_layer(self) -> nn.Linear:
        """The random layer."""
        layer = dict(self.net.named_modules()).get(self.last)
        if not isinstance(layer, nn.Linear):
            raise ValueError(f"Laplace: the network has no linear layer {self.last!r}.")
        return layer

    @torch.no_grad()
    def features(self, *inputs: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
        """Return features (B, D), with a column of ones for the bias, and outputs (B, C)."""
        seen: list[tuple[Tensor, Tensor]] = []
        handle = self.last_layer.register_forward_hook(
            lambda _layer, args, output: seen.append((args[0], output))
        )
        try:
            outputs = tensor_of(self.net(*inputs, **keywords))
        finally:
            handle.remove()
        if len(seen) != 1 or seen[0][1] is not outputs:
            raise ValueError(NOT_LINEAR)
        phi = seen[0][0].double()
        if phi.ndim != 2:
            raise ValueError(
                "Laplace: expected features (B, D) before the last layer, received "
                f"{tuple(phi.shape)}."
            )
        if self.last_layer.bias is not None:
            phi = torch.cat([phi, torch.ones_like(phi[:, :1])], -1)
        return phi, outputs.double()

    def fit_curvature(self, data: Batches) -> float:
        """Compute A and G from training data; return the log-likelihood of the data.

        With class weights the loss is a weighted mean. Weights then count relative to their mean,
        so that N examples have the curvature and the log-likelihood of N examples.
        """
        total_a: Tensor | float = 0.0
        total_g: Tensor | float = 0.0
        examples, count, weight, log_likelihood = 0, 0, 0.0, 0.0
        for batch in data.epoch():
            phi, outputs = batch.call(self.features, self.last_layer.weight)
            targets = batch.targets.to(outputs.device)
            total_a = total_a + phi.T @ phi
            total_g = total_g + curvature(self.likelihood, outputs, targets)
            loss, own = total_loss(self.likelihood, outputs, targets)
            log_likelihood -= loss
            examples, count, weight = examples + len(phi), count + targets.numel(), weight + own
        mean_weight = weight / count
        for name, matrix in (("input", total_a), ("output", total_g / (mean_weight * examples))):
            values, vectors = torch.linalg.eigh(matrix)
            setattr(self, f"{name}_values", values.clamp_min(0))
            # Row-major, as after loading from a file: the same layout gives the same bits.
            setattr(self, f"{name}_vectors", vectors.contiguous())
        return log_likelihood / mean_weight

    def log_evidence(self, precision: float) -> float:
        """Return the log marginal likelihood minus the log-likelihood, for a prior precision."""
        layer = self.last_layer
        weights = [t.detach().double() for t in (layer.weight, layer.bias) if t is not None]
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

    def mean_network(self) -> nn.Module:
        return self.net

    def describe(self) -> dict[str, Any]:
        return {"network": describe_network(self.net), "last": self.last, "probit": self.probit}

    @classmethod
    def build(
        cls, given: Mapping[str, Any], make_net: Callable[[], nn.Module], likelihood: Likelihood
    ) -> LastLayer:
        return cls(make_net(), likelihood, given["last"], probit=given["probit"])


def checked_output_layer(task: Task, batch: Batch) -> str:
    """Return the name of the last layer, after checking before training that the task is suitable.

    Args:
        task: The task.
        batch: Some inputs.

    Raises:
        TypeError: If the likelihood has no curvature here.
        ValueError: If the output is not the unmodified output of an `nn.Linear`.
    """
    if not isinstance(task.likelihood, Categorical | Bernoulli | Gaussian):
        raise TypeError(
            "Laplace: expected a Categorical, Bernoulli or Gaussian likelihood, received "
            f"{task.likelihood!r}."
        )
    if isinstance(task.likelihood, Categorical) and task.likelihood.ignore_index is not None:
        raise ValueError("Laplace: ignore_index is not supported; leave these examples out.")
    net = task.net().eval()
    predictor = LastLayer(net, task.likelihood, output_layer(net, batch))
    batch.call(predictor.features, predictor.last_layer.weight)
    return predictor.last


@torch.no_grad()
def output_layer(net: nn.Module, batch: Batch) -> str:
    """Return the name of the linear layer whose output is the network's output.

    It is found in a forward pass: the order in which layers are registered says nothing about the
    order in which they are called.

    Args:
        net: The network, in eval mode.
        batch: Some inputs.

    Raises:
        ValueError: If the output is not the unmodified output of an `nn.Linear`.
    """
    seen: list[tuple[str, Tensor, int]] = []
    handles = [
        layer.register_forward_hook(
            lambda _layer, _args, output, name=name: seen.append((name, output, version(output)))
        )
        for name, layer in net.named_modules()
        # A subclass may compute something else, for instance add an adapter.
        if isinstance(layer, nn.Linear) and type(layer).forward is nn.Linear.forward
    ]
    try:
        like = next(net.parameters(), torch.zeros(()))
        output = tensor_of(batch.call(net, like))
    finally:
        for handle in handles:
            handle.remove()
    names = [name for name, out, stamp in seen if out is output and version(out) == stamp]
    if len(names) != 1 or [name for name, _, _ in seen].count(names[0]) != 1:
        raise ValueError(NOT_LINEAR)
    return names[0]


def total_loss(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return numerator and denominator of the mean in the loss: sums of losses and of weights.

    The loss itself is undefined for a batch of classes with weight 0.
    """
    if not isinstance(likelihood, Categorical) or likelihood.class_weights is None:
        count = targets.numel()
        return likelihood.loss(outputs, targets, samples=False).item() * count, float(count)
    w, smoothing = likelihood.class_weights.to(outputs), likelihood.label_smoothing
    labels = targets.long().view(-1, 1)
    losses = -w * F.log_softmax(outputs, -1)  # (B, C)
    own, smooth = losses.gather(-1, labels).sum().item(), losses.mean(-1).sum().item()
    return (1 - smoothing) * own + smoothing * smooth, w[labels].sum().item()


def curvature(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the Hessian of the weighted losses in the outputs, summed over examples, (C, C).

    The cross-entropy with any target t, -sum_c t_c log p_c, has the Hessian
    sum_c t_c (diag(p) - p p^T). Label smoothing alone leaves sum_c t_c at 1. With class weights w
    and smoothing e it is (1 - e) w_y + e mean(w).
    """
    if isinstance(likelihood, Categorical):
        p, mass = F.softmax(outputs, -1), torch.ones_like(outputs[:, :1])
        if likelihood.class_weights is not None:
            w, smoothing = likelihood.class_weights.to(p), likelihood.label_smoothing
            mass = (1 - smoothing) * w[targets.long().reshape(-1, 1)] + smoothing * w.mean()
        return torch.diag((mass * p).sum(0)) - (mass * p).T @ p
    if isinstance(likelihood, Bernoulli):
        p = outputs.sigmoid()
        return torch.diag((p * (1 - p)).sum(0))
    if isinstance(likelihood, Gaussian):
        scale = likelihood.output_scale.detach().double()
        eye = torch.eye(outputs.shape[-1], dtype=outputs.dtype, device=outputs.device)
        return len(outputs) * eye / scale.square()
    raise TypeError(f"Laplace: no curvature for {likelihood!r}.")
