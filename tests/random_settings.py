"""Random legitimate settings: networks, data, likelihoods and arguments of the main calls."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import tacit
from tacit.weights.covariance import PositiveDiagonal


class Recurrent(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.embedding = nn.Embedding(9, 4, padding_idx=0)
        self.lstm = nn.LSTM(4, 5, batch_first=True)
        self.head = nn.Linear(5, outputs)

    def forward(self, words):
        return self.head(self.lstm(self.embedding(words))[0][:, -1])


class Gated(nn.Module):
    """A recurrent layer with the batch second inside, and mean pooling."""

    def __init__(self, outputs):
        super().__init__()
        self.gru, self.head = nn.GRU(4, 3, num_layers=2), nn.Linear(3, outputs)

    def forward(self, x):
        steps = torch.stack([x, x.flip(-1), -x])  # (3, B, 4)
        return self.head(self.gru(steps)[0].mean(0))


class Attention(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.embedding = nn.Embedding(9, 6)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.norm, self.head = nn.LayerNorm(6), nn.Linear(6, outputs)

    def forward(self, words):
        h = self.embedding(words)
        return self.head(self.norm(h + self.attention(h, h, h, need_weights=False)[0]).mean(1))


class TiedEnds(nn.Module):
    """The output layer uses the matrix of the first layer."""

    def __init__(self, outputs):
        super().__init__()
        self.encoder, self.body = nn.Linear(4, 4, bias=False), nn.Linear(4, 4)
        self.decoder, self.head = nn.Linear(4, 4), nn.Linear(4, outputs)
        self.decoder.weight = self.encoder.weight

    def forward(self, x):
        return self.head(self.decoder(self.body(self.encoder(x).tanh()).tanh()).tanh())


class Twice(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, outputs)

    def forward(self, x):
        return self.head(self.inner(self.inner(x).tanh()).tanh())


class TwoInputs(nn.Module):
    """Keyword inputs, and an output in a dict as in Hugging Face models."""

    def __init__(self, outputs):
        super().__init__()
        self.left, self.right = nn.Linear(4, 5), nn.Linear(3, 5)
        self.head = nn.Linear(5, outputs)

    def forward(self, x, context):
        return {"logits": self.head((self.left(x) + self.right(context)).tanh()), "other": None}


class Bare(nn.Module):
    """Parameters that belong to no layer."""

    def __init__(self, outputs):
        super().__init__()
        self.token, self.gain = nn.Parameter(torch.randn(4)), nn.Parameter(torch.ones(()))
        self.body, self.head = nn.Linear(4, 5), nn.Linear(5, outputs)

    def forward(self, x):
        return self.head(self.body(x + self.token).relu()) * self.gain


class Transformer(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.embedding = nn.EmbeddingBag(9, 6, mode="mean")
        self.block = nn.TransformerEncoderLayer(6, 2, 5, dropout=0.0, batch_first=True)
        self.head = nn.Linear(6, outputs)

    def forward(self, words):
        steps = torch.stack([self.embedding(words[:, :3]), self.embedding(words[:, 2:])], 1)
        return self.head(self.block(steps)[:, 0])


def convolutional(norm, memory_format=torch.contiguous_format):
    return lambda outputs: nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), norm(), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 2, 2, bias=False), nn.Flatten(), nn.Linear(2, outputs),
    ).to(memory_format=memory_format)  # fmt: skip


NETWORKS = {
    "mlp": lambda outputs: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, outputs)),
    "MLP": lambda outputs: tacit.models.MLP(4, [5, 3], outputs),
    "normed": lambda outputs: nn.Sequential(
        nn.Linear(4, 5), nn.LayerNorm(5), nn.GELU(), nn.Linear(5, outputs, bias=False)
    ),
    "flat": lambda outputs: nn.Sequential(
        nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, outputs), nn.Flatten(0)
    ),
    "batch norm": convolutional(lambda: nn.BatchNorm2d(4)),
    "group norm": convolutional(lambda: nn.GroupNorm(2, 4)),
    "channels last norm": convolutional(lambda: nn.GroupNorm(1, 4), torch.channels_last),
    "recurrent": Recurrent,
    "gated": Gated,
    "transformer": Transformer,
    "attention": Attention,
    "tied": TiedEnds,
    "twice": Twice,
    "two inputs": TwoInputs,
    "bare": Bare,
}
SEQUENCES = ("mlp", "normed", "twice", "bare")  # also applied at every position of (B, L, 4)
CLASSES = 3


@dataclass
class Case:
    """One set of settings; its repr and seed reproduce a failure."""

    seed: int
    network: str
    family: str
    double: bool
    positions: int
    outputs: int
    likelihood: dict[str, Any]
    wrap: dict[str, Any] | None
    fit: dict[str, Any] | None
    attach: bool
    train: int
    held_out: int
    form: str
    targets: str
    frozen: bool
    mode: str
    predict: dict[str, Any]
    calibrate: dict[str, Any] | None
    saves: tuple[bool, bool]

    def net(self):
        net = NETWORKS[self.network](self.outputs)
        return net.double() if self.double else net

    def make_likelihood(self):
        kinds = {"classes": tacit.Categorical, "binary": tacit.Bernoulli,
                 "numbers": tacit.Gaussian, "scales": tacit.HeteroscedasticGaussian}  # fmt: skip
        return kinds[self.family](**self.likelihood)

    def data(self, size, generator):
        """Return inputs and targets of some examples."""
        inputs = self._inputs(size, generator)
        shape = (size, *([self.positions] if self.positions else []))
        if self.family == "classes":
            labels = torch.randint(self.outputs, shape, generator=generator)
            labels[: self.outputs] = torch.arange(self.outputs).view(-1, *([1] * (len(shape) - 1)))
            kinds = {"long": torch.long, "int": torch.int32, "column": torch.long}
            return inputs, self._column(labels).to(kinds[self.targets])
        width = self.outputs // 2 if self.family == "scales" else self.outputs
        full = shape if self.network == "flat" else (*shape, width)
        values = torch.randn(full, generator=generator)
        if self.family == "binary":
            values = {
                "long": (values > 0).long(), "int": values > 0, "column": values.sigmoid(),
            }[self.targets]  # fmt: skip
        elif self.targets == "int":
            values = values.double()
        if width == 1 and self.network != "flat" and self.targets != "column":
            values = values[..., 0]
        return inputs, values

    def _column(self, labels):
        return labels[..., None] if self.targets == "column" else labels

    def _inputs(self, size, generator):
        if "norm" in self.network and self.network != "normed":
            return torch.randn(size, 1, 4, 4, generator=generator)
        if self.network in ("recurrent", "attention", "transformer"):
            return torch.randint(9, (size, 5), generator=generator)
        shape = (size, self.positions, 4) if self.positions else (size, 4)
        x = torch.randn(shape, generator=generator)
        if self.network == "two inputs":
            return {"x": x, "context": torch.randn(size, 3, generator=generator)}
        return x


def random_case(seed, rng):
    """Return random settings.

    Args:
        seed: Number of the case.
        rng: A `random.Random`.
    """
    network = rng.choice(list(NETWORKS))
    family = rng.choice(["classes", "classes", "binary", "numbers", "scales"])
    if network == "flat":
        family = rng.choice(["binary", "numbers"])
    positions = 4 if network in SEQUENCES and family == "classes" and rng.random() < 0.25 else 0
    wide = {"classes": CLASSES, "binary": rng.choice([1, 2]), "numbers": rng.choice([1, 2])}
    outputs = 1 if network == "flat" else wide.get(family, rng.choice([2, 4]))
    train = rng.randint(4, 14)
    wrap = _wrap(rng) if rng.random() < 0.9 else None
    fit = _fit(rng, train, wrap is not None) if rng.random() < 0.75 else None
    # Adam turns rounding errors of single precision into full steps where a gradient is 0.
    double = rng.random() < 0.5 or (fit is not None and fit["optimizer"] == "adamw")
    return Case(
        seed=seed, network=network, family=family, double=double, positions=positions,
        outputs=outputs, likelihood=_likelihood(family, rng), wrap=wrap, fit=fit,
        attach=rng.random() < 0.8, train=train, held_out=rng.randint(3, 12),
        form=rng.choice(["tensors", "arrays", "dataset", "loader"]),
        targets=rng.choice(["long", "int", "column"]), frozen=rng.random() < 0.1,
        mode=rng.choice(["train", "train", "eval", "norm in eval"]),
        predict=_predict(family, rng),
        calibrate=_calibrate(family, rng) if family in ("classes", "binary") else None,
        saves=(rng.random() < 0.4, rng.random() < 0.4),
    )  # fmt: skip


def _likelihood(family, rng):
    found = {}
    if family in ("classes", "binary") and rng.random() < 0.6:
        found["averaging"] = rng.choice(["log_probs", "probs", "logits"])
    if family == "numbers":
        return {"scale": rng.choice([0.3, 1.0]), "learn": rng.random() < 0.5}
    if family == "classes":
        if rng.random() < 0.4:
            found["class_names"] = ["a", "b", "c"]
        if rng.random() < 0.3:
            found["class_weights"] = rng.choice([[1.0, 2.0, 0.5], [0.0, 1.0, 3.0]])
        if rng.random() < 0.3:
            found["label_smoothing"] = rng.choice([0.1, 0.5])
    return found


def _covariance(rng):
    rank, scale = rng.choice([1, 2, 3, 7]), rng.choice([1.0, 0.3])
    return rng.choice([
        tacit.LowRank(rank, scale), tacit.FullRank(scale), tacit.Diagonal(scale),
        tacit.Kronecker(rng.randint(1, 3), rng.randint(1, 2), scale),
        tacit.LowRankPlusDiagonal(rank, scale), PositiveDiagonal(scale),
        tacit.RankOneSum(rank, scale),
    ])  # fmt: skip


def _wrap(rng):
    parts = ["every", "list", "glob", "two", "recipe", "tensor", "weights"]
    where = rng.choice(parts)
    found = {"where": where, "covariances": [_covariance(rng), _covariance(rng)]}
    if where in ("every", "list") and rng.random() < 0.6:
        found["rank"] = rng.choice([1, 2, 4])
    if rng.random() < 0.4:
        found["noise"] = rng.choice([tacit.noise.Laplace(), tacit.noise.StudentT(4.5)])
    if rng.random() < 0.3:
        found["parametrization"] = rng.choice([tacit.MaximalUpdate(), tacit.NeuralTangent()])
    relative = where == "every" and "rank" not in found
    each = relative or any(c.acts_on_activations for c in found["covariances"])
    if rng.random() < 0.5 or each:  # the reference has no draws for each example
        found["draws"] = rng.choice([1, 2, 3, 5])
    return found


def where_of(choice, covariances, net):
    """Return the argument `where` of `tacit.variational` for a network."""
    layers = list(dict.fromkeys(name.rpartition(".")[0] for name, _ in net.named_parameters()))
    first, second = covariances
    if choice == "every":
        return None
    if choice == "list":
        return [layers[0], layers[-1]] if len(layers) > 1 else layers
    if choice == "glob":
        return {"*": first}
    if choice == "weights":
        return {"*weight*": first}
    if choice == "two":
        return {layers[len(layers) // 2]: second, layers[-1]: first}
    if choice == "recipe":
        return tacit.first_and_last
    names = [name for name, _ in net.named_parameters()]
    return {names[-1]: first, names[0]: second}


def _fit(rng, train, random):
    found = {
        "epochs": rng.randint(1, 3), "lr": rng.choice([0.003, 0.02]),
        "optimizer": rng.choice(["sgd", "sgd", "adamw"]),
        "batch_size": rng.choice([2, 3, 4, 5, train, train + 5]), "seed": rng.choice([0, 3, 2**33]),
        "validation": rng.random() < 0.6, "progress": False,
    }  # fmt: skip
    if found["optimizer"] == "sgd" and rng.random() < 0.5:
        found["momentum"] = rng.choice([0.0, 0.5])
    if rng.random() < 0.4:
        found["weight_decay"] = 0.1
    if random and rng.random() < 0.6:
        found.update(rng.choice([{"draws": 1}, {"draws": 2}, {"draws": 3}, {"samples": 3}]))
    if rng.random() < 0.3:
        found["schedule"] = rng.choice(["cosine", lambda progress: 1 - progress / 2])
    if found["validation"] and rng.random() < 0.3:
        found["early_stopping"] = 1
    if rng.random() < 0.1:
        found["precision"] = "64-true"
    if rng.random() < 0.1:
        found["checkpoint"] = "run"
    return found


def _predict(family, rng):
    found = {"samples": rng.choice([1, 2, 5]), "batch_size": rng.choice([1, 2, 4, 1024])}
    if rng.random() < 0.4:
        found["chunk_size"] = rng.choice([1, 2, 9])
    if family in ("classes", "binary") and rng.random() < 0.4:
        found["averaging"] = rng.choice(["log_probs", "probs", "logits"])
    return found


def _calibrate(family, rng):
    if rng.random() < 0.3:
        return None
    found = {"samples": rng.choice([1, 4]), "batch_size": rng.choice([2, 5, 1024])}
    if rng.random() < 0.5:
        found["scope"] = rng.choice(["logits", "mean"])
    if family == "classes" and rng.random() < 0.4:
        found["method"] = "vector"
    return found
