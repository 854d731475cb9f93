"""Sampling, prediction, calibration and training written plainly in torch, one draw at a time.

It takes means, factors and settings from a variational model and computes all else by itself.
"""

import copy
import math

import torch
from scipy.optimize import minimize_scalar
from torch import nn
from torch.func import functional_call
from torch.nn import functional as F

import tacit
from tacit.weights.covariance import PositiveDiagonal


def one(inputs, part=slice(None)):
    """Return the arguments of a call for some examples."""
    if isinstance(inputs, dict):
        return (), {name: value[part] for name, value in inputs.items()}
    return (inputs[part],), {}


def size_of(inputs):
    return len(next(iter(inputs.values())) if isinstance(inputs, dict) else inputs)


def converted(inputs, dtype):
    if isinstance(inputs, dict):
        return {name: value.to(dtype) for name, value in inputs.items()}
    return inputs.to(dtype) if inputs.is_floating_point() else inputs


def noise(kind, shape, dtype, generator=None):
    """Draw standardised noise from its textbook formula."""
    if isinstance(kind, tacit.noise.Gaussian):
        return torch.randn(shape, dtype=dtype, generator=generator)

    def uniform():
        return torch.rand(shape, dtype=dtype, generator=generator)

    if isinstance(kind, tacit.noise.Laplace):
        first, second = -torch.log1p(-uniform()), -torch.log1p(-uniform())
        return (first - second) / math.sqrt(2)
    df, u, v = kind.df, 1 - uniform(), uniform()
    t = (df * (u ** (-2 / df) - 1)).sqrt() * torch.cos(2 * math.pi * v)
    return t * math.sqrt((df - 2) / df)


def deviations(covariance, factors, z, shapes, mean=None):
    """Return S z for a single z, by name of the tensor; relative noise needs the mean."""
    if isinstance(covariance, tacit.Relative):
        assert covariance.axis == covariance.groups == 1
        parts = z.split([len(factors[name]) for name in factors])
        each = dict(zip(factors, parts, strict=True))
        by_unit = {n: (factors[n] * each[n]).view(-1, *[1] * (mean[n].ndim - 2)) for n in factors}
        return {n: mean[n] * by_unit[n] if n in factors else 0 * mean[n] for n in shapes}
    count = sum(math.prod(shape) for shape in shapes.values())
    names, sizes = list(shapes), [math.prod(shape) for shape in shapes.values()]

    def cut(vector):
        return {n: v.reshape(shapes[n]) for n, v in zip(names, vector.split(sizes), strict=True)}

    if isinstance(covariance, tacit.LowRank | tacit.FullRank):
        return {n: sum(z[r] * factors[n][r] for r in range(len(z))) for n in names}
    if isinstance(covariance, PositiveDiagonal):
        factors = {name: factor.exp() for name, factor in factors.items()}
    if isinstance(covariance, tacit.Diagonal):
        return cut(torch.cat([factors[n].flatten() for n in names]) * z)
    if isinstance(covariance, tacit.LowRankPlusDiagonal):
        low = deviations(tacit.LowRank(covariance.rank), factors, z[:-count], shapes)
        scales = {n: factors[f"{n}_diagonal"] for n in names}
        own = deviations(tacit.Diagonal(), scales, z[-count:], shapes)
        return {n: low[n] + own[n] for n in names}
    if isinstance(covariance, tacit.RankOneSum):
        R_in, Z = covariance.rank, z.diag()
    else:
        R_in, Z = covariance.input_rank, z.view(covariance.output_rank, covariance.input_rank)
    (output,) = (factor for name, factor in factors.items() if name.endswith("_output"))
    A = torch.cat([factors[f"{n}_input"].reshape(R_in, -1) for n in names], 1).T  # (columns, R_in)
    W = output.T @ Z @ A.T
    columns = [size // len(W) for size in sizes]
    return {n: w.reshape(shapes[n]) for n, w in zip(names, W.split(columns, 1), strict=True)}


def noise_size(covariance, shapes):
    if isinstance(covariance, tacit.Relative):
        return sum(shape[1] for shape in shapes.values() if len(shape) > 1)
    count = sum(math.prod(shape) for shape in shapes.values())
    if isinstance(covariance, tacit.LowRank | tacit.RankOneSum):
        return covariance.rank
    if isinstance(covariance, tacit.Kronecker):
        return covariance.input_rank * covariance.output_rank
    return count + (covariance.rank if isinstance(covariance, tacit.LowRankPlusDiagonal) else 0)


def draw(model, count, generator=None, *, single=False):
    """Return `count` sets of weights, drawn layer by layer; {} for a plain network."""
    sets = [{} for _ in range(count)]
    for layer in getattr(model, "layers", ()):
        owner = model.module.get_submodule(layer.name)
        home = model.factors.get_submodule(layer.name)
        factors = {name: home.get_parameter(name) for name in layer.factors}
        like = owner.get_parameter(next(iter(layer.shapes)))
        size = noise_size(layer.covariance, layer.shapes)
        drawn = noise(model.noise, (size,) if single else (count, size), like.dtype, generator)
        means = {name: owner.get_parameter(name) for name in layer.shapes}
        for weights, z in zip(sets, drawn.view(count, size), strict=True):
            moves = deviations(layer.covariance, factors, z, layer.shapes, means)
            for name, moved in moves.items():
                mean = means[name]
                padding = getattr(owner, "padding_idx", None)
                if padding is not None:
                    keep = torch.ones_like(mean[:, :1])
                    keep[padding] = 0
                    moved = moved * keep
                weights[layer.parameters[name]] = mean + moved
    return sets


def call(model, weights, inputs, part=slice(None), buffers=None):
    net = model.module if isinstance(model, tacit.calling.Variational) else model
    args, keywords = one(inputs, part)
    if getattr(model, "inputs", None) is not None:
        args = ((args[0] - model.inputs.mean) / model.inputs.std,)
    output = functional_call(net, {**weights, **(buffers or {})}, args, keywords)
    return output["logits"] if isinstance(output, dict) else output


@torch.no_grad()
def outputs(model, inputs, samples, generator):
    """Return the outputs of functions drawn from a model, (M, B, ...)."""
    model = copy.deepcopy(model).eval()
    dtype = next(model.parameters()).dtype
    sets = draw(model, samples if hasattr(model, "layers") else 1, generator)
    inputs = converted(inputs, dtype)
    return torch.stack([call(model, weights, inputs) for weights in sets])


def loss(likelihood, found, targets):
    """Return the training loss of outputs (B, ...) or (M, B, ...)."""
    if isinstance(likelihood, tacit.Categorical):
        classes = found.shape[-1]
        log_p = found.log_softmax(-1).reshape(-1, classes)
        labels = targets.flatten().long().repeat(len(log_p) // targets.numel())
        weights = likelihood.class_weights
        w = torch.ones(classes) if weights is None else weights
        w, smooth = w.to(found), likelihood.label_smoothing
        soft = (1 - smooth) * F.one_hot(labels, classes).to(found) + smooth / classes
        return -(soft * w * log_p).sum() / w[labels].sum()
    if isinstance(likelihood, tacit.HeteroscedasticGaussian):
        found, raw = found.chunk(2, -1)
        scale = F.softplus(raw).flatten() + 1e-4
    values = found.flatten()
    t = targets.to(found.dtype).flatten()
    t = t.repeat(len(values) // len(t))
    if isinstance(likelihood, tacit.Bernoulli):
        return (F.softplus(values) - t * values).mean()
    t = (t - in_order(likelihood.location, t)) / in_order(likelihood.unit, t)
    if isinstance(likelihood, tacit.HeteroscedasticGaussian):
        z = (t - values) / scale
        terms = z.square() / 2 + scale.log() + math.log(2 * math.pi) / 2
        return (terms * scale.detach()).mean()  # beta-NLL with beta = 1/2
    errors = t - values
    if not likelihood.log_scale.requires_grad:  # fixed scales weigh outputs against each other
        precision = 1 / in_order(likelihood.log_scale.exp(), t)
        errors = errors * precision / precision.max()
    return errors.square().mean() / 2


def in_order(values, flat):
    """Return one number, or one for each output, beside flattened targets."""
    return values.detach().to(flat).flatten().repeat(len(flat) // values.numel())


def set_units(model, likelihood, listed):
    """Standardise targets, and the inputs of tables, by the moments of the training data."""
    if not isinstance(likelihood, tacit.likelihood.ContinuousLikelihood):
        return
    y = torch.cat([targets for _, targets in listed]).double()
    mean, std = y.mean(0), y.std(0, correction=0)
    single = mean.numel() == 1
    units = (value.reshape(()) if single else value for value in (mean, std))
    likelihood.set_units(*units, flat=y.ndim == 1)
    inputs = [each for each, _ in listed]
    table = not isinstance(inputs[0], dict) and inputs[0].ndim == 2
    if table and inputs[0].is_floating_point() and hasattr(model, "layers"):
        x = torch.cat(inputs).double()
        scaling = tacit.models.Standardise(x.mean(0), x.std(0, correction=0))
        model.inputs = scaling.to(next(model.parameters()))


def fit_scale(likelihood, found, targets, final=False):
    """Set the noise scales to the optimum of the penalised likelihood, by SciPy's search."""
    if not isinstance(likelihood, tacit.likelihood.ContinuousLikelihood):
        return
    found, scale = found.double(), torch.ones_like(found).double()
    if isinstance(likelihood, tacit.HeteroscedasticGaussian):
        found, raw = found.chunk(2, -1)
        scale = F.softplus(raw) + 1e-4
        count = likelihood.factor.numel()
    else:
        count = likelihood.log_scale.numel()
        if not likelihood.log_scale.requires_grad:
            return
    t = targets.double().reshape(-1)
    t = (t - in_order(likelihood.location, t)) / in_order(likelihood.unit, t)
    errors = ((t - found.reshape(len(found), -1)) / scale.reshape(len(found), -1)).view(
        len(found), -1, count
    )
    logs = scale.reshape(len(found), -1, count).log()
    best = []
    for d in range(count):
        e, squared = errors[..., d], errors[..., d].square().mean()

        def objective(x, e=e, squared=squared, d=d):
            data = x - torch.logsumexp(-(e * math.exp(-x)).square() / 2 - logs[..., d], 0).mean()
            return (data + 5 / e.shape[1] * (x + squared * math.exp(-2 * x) / 2)).item()

        high = max(squared.sqrt().item(), 2e-4)
        bounds = math.log(1e-4), math.log(high) + 0.1
        search = {"method": "bounded", "options": {"xatol": 1e-10}}
        best.append(minimize_scalar(objective, bounds=bounds, **search).x)
    if final and isinstance(likelihood, tacit.HeteroscedasticGaussian):
        best = [max(x, least_scale(errors[..., d])) for d, x in enumerate(best)]
    with torch.no_grad():
        if isinstance(likelihood, tacit.HeteroscedasticGaussian):
            likelihood.factor.copy_(torch.tensor(best).exp().reshape(likelihood.factor.shape))
        else:
            likelihood.log_scale.copy_(torch.tensor(best).reshape(likelihood.log_scale.shape))


def least_scale(errors):
    """Return the log of the least factor with which 90 % intervals contain their share."""

    def inside(x):
        probability = torch.special.ndtr(errors * math.exp(-x)).mean(0)
        return int(((probability - 0.5).abs() <= 0.45).sum())

    count = errors.shape[1]
    wanted, low, high = min(round(0.9 * (count + 1)), count), math.log(1e-4), 20.0
    while high - low > 1e-12:
        middle = (low + high) / 2
        low, high = (low, middle) if inside(middle) >= wanted else (middle, high)
    return high


def scaled(logits, temperature, scope, offset):
    if scope == "logits":
        return logits / temperature + offset
    mean = logits.mean(0, keepdim=True)
    return mean / temperature + logits - mean + offset


def averaged(logits, averaging):
    """Return probabilities (B, ..., C) from the logits of M functions."""
    if averaging == "probs":
        return logits.softmax(-1).mean(0)
    if averaging == "logits":
        return logits.mean(0).softmax(-1)
    geometric = logits.log_softmax(-1).mean(0).exp()
    return geometric / geometric.sum(-1, keepdim=True)


def entropy(p):
    return -torch.xlogy(p, p).sum(-1)


def predictive(likelihood, found, averaging=None):
    """Return the attributes of the predictive distribution by name."""
    found = found.double()
    if not isinstance(likelihood, tacit.Categorical | tacit.Bernoulli):
        scale = torch.zeros_like(found)
        if isinstance(likelihood, tacit.Gaussian):
            scale = scale + likelihood.log_scale.exp().double()
        else:
            found, raw = found.chunk(2, -1)
            scale = (F.softplus(raw) + 1e-4) * likelihood.factor.double()
        if likelihood.flat and found.ndim == 3 and found.shape[-1] == 1:
            found, scale = found[..., 0], scale[..., 0]
        unit = likelihood.unit.double()
        found, scale = found * unit + likelihood.location.double(), scale * unit
        variance = found.var(0, correction=0)
        std = (variance + scale.square().mean(0)).sqrt()
        return {"mean": found.mean(0), "std": std, "epistemic_std": variance.sqrt(),
                "means": found, "scales": scale}  # fmt: skip
    binary = isinstance(likelihood, tacit.Bernoulli)
    if binary and found.ndim == 3 and found.shape[-1] == 1:
        found = found[..., 0]
    offset = 0.0 if binary else likelihood.offset.double()
    logits = scaled(found, likelihood.temperature.double(), likelihood.scope, offset)
    if binary:
        logits = torch.stack([torch.zeros_like(logits), logits], -1)
    p = averaged(logits, averaging or likelihood.averaging)
    mean_entropy = entropy(logits.softmax(-1)).mean(0)
    information = entropy(logits.softmax(-1).mean(0)) - mean_entropy
    return {"probs": p[..., 1] if binary else p, "confidence": p.amax(-1), "entropy": entropy(p),
            "expected_entropy": mean_entropy, "mutual_information": information}  # fmt: skip


def nll(likelihood, found, targets):
    """Return the mean NLL of the predictive distribution."""
    p = predictive(likelihood, found)
    if "means" in p:
        t = targets.double().reshape(p["mean"].shape)
        density = torch.distributions.Normal(p["means"], p["scales"], False).log_prob(t)
        return -(density.logsumexp(0) - math.log(len(density))).mean().item()
    if isinstance(likelihood, tacit.Categorical):
        labels = targets.reshape(p["entropy"].shape)[..., None].long()
        return -p["probs"].gather(-1, labels).log().mean().item()
    t = targets.double().reshape(p["probs"].shape)
    return -(torch.xlogy(t, p["probs"]) + torch.xlogy(1 - t, 1 - p["probs"])).mean().item()


def training_outputs(model, inputs, settings):
    """Return the outputs of a training step, its draws from the global generator."""
    size = size_of(inputs)
    net = getattr(model, "module", model)
    statistics = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d) and m.training]
    samples, draws = settings.get("samples", 1), settings["draws"]
    if samples > 1:
        groups = [(weights, slice(None)) for weights in draw(model, samples)]
    else:
        count = max(1, min(draws, size // 2 if statistics and draws > 1 else size))
        sets = draw(model, count, single=count == 1)
        cuts = torch.arange(size).tensor_split(count)
        groups = [(w, slice(int(c[0]), int(c[-1]) + 1)) for w, c in zip(sets, cuts, strict=True)]
    found, after = [], []
    for weights, part in groups:
        buffers = {name: buffer.clone() for name, buffer in net.named_buffers()}
        found.append(call(model, weights, inputs, part, buffers))
        after.append(buffers)
    for name, buffer in net.named_buffers():  # one step of running statistics per call
        stacked = torch.stack([buffers[name] for buffers in after])
        buffer.copy_(stacked.mean(0) if stacked.is_floating_point() else stacked[0])
    return torch.stack(found) if samples > 1 else torch.cat(found)


def _together(listed):
    inputs, targets = zip(*listed, strict=True)
    if isinstance(inputs[0], dict):
        joined = {name: torch.cat([each[name] for each in inputs]) for name in inputs[0]}
    else:
        joined = torch.cat(inputs)
    return joined, torch.cat(targets)


class Trained:
    """A copy of a model trained by a plain loop, with the data order and seeds of `tacit.fit`.

    Args:
        model: The model, which is copied.
        likelihood: Its likelihood, attached to it or not.
        batches: Epoch -> list of pairs of inputs and targets.
        held_out: Validation data, or None.
        settings: Arguments of `tacit.fit`, with `factor` for the schedule.
    """

    def __init__(self, model, likelihood, batches, held_out, settings):
        self.model, self.likelihood = copy.deepcopy((model, likelihood))
        self.settings, self.losses, self.nlls, states = settings, [], [], []
        set_units(self.model, self.likelihood, batches(0))
        if settings.get("precision") == "64-true":
            self.model.double()
        kept = [m for m in self.model.modules() if self.model.training and not m.training]
        optimizer = self._optimizer()
        rates = [group["lr"] for group in optimizer.param_groups]
        epochs = settings["epochs"]
        with torch.random.fork_rng():
            torch.manual_seed((settings["seed"] + 1) * 2_000_003)
            for epoch in range(epochs):
                self.model.train()
                for module in kept:
                    module.eval()
                values, listed = [], batches(epoch)
                for step, batch in enumerate(listed):
                    factor = settings["factor"]((epoch + step / len(listed)) / epochs)
                    for group, rate in zip(optimizer.param_groups, rates, strict=True):
                        group["lr"] = rate * factor
                    values.append(self._step(optimizer, *batch))
                self.losses.append(sum(values) / len(values))
                if held_out is not None:
                    found = outputs(self.model, held_out[0], 8, torch.Generator().manual_seed(0))
                    fit_scale(self.likelihood, found, held_out[1])
                    self.nlls.append(nll(self.likelihood, found, held_out[1]))
                    states.append(copy.deepcopy((self.model, self.likelihood)))
                    best = self.nlls.index(min(self.nlls))
                    if epoch - best >= settings.get("early_stopping", epochs):
                        break
        if "early_stopping" in settings:
            self.model, self.likelihood = states[best]
        data = held_out or _together(batches(0))
        found = outputs(self.model, data[0], 32, torch.Generator().manual_seed(0))
        fit_scale(self.likelihood, found, data[1], final=True)

    @property
    def finite(self):
        return all(p.isfinite().all() for p in self.model.parameters())

    def _optimizer(self):
        settings = self.settings
        groups = tacit.param_groups(
            self.model, settings["lr"], settings["optimizer"],
            weight_decay=settings.get("weight_decay", 0.0),
        )  # fmt: skip
        own = {id(p) for group in groups for p in group["params"]}
        rest = [p for p in self.likelihood.parameters() if id(p) not in own]
        if rest:
            groups.append({"params": rest, "lr": settings["lr"], "weight_decay": 0.0})
        if settings["optimizer"] == "adamw":
            return torch.optim.AdamW(groups, weight_decay=0.0, foreach=False)
        return torch.optim.SGD(groups, momentum=settings.get("momentum", 0.9), foreach=False)

    def _step(self, optimizer, inputs, targets):
        dtype = next(self.model.parameters()).dtype
        found = training_outputs(self.model, converted(inputs, dtype), self.settings)
        value = loss(self.likelihood, found, targets)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.item()
