# %% [markdown]
# # Extend it
#
# The library asks little of its parts. A likelihood turns outputs into a loss and a prediction; a
# covariance maps noise to weights; a method turns a task into a predictor. What you write is
# accepted wherever the library's own is. This page adds one of each, tests it, and uses it on a
# problem where it could help. Not all of them do.
#
# The data are scikit-learn's digits throughout.

# %%
import os
import re
import tempfile
from contextlib import redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from io import StringIO
from pathlib import Path

import pytest
import torch
from matplotlib import pyplot as plt
from scipy.stats import betabinom
from torch.distributions import Binomial as TorchBinomial

import tacit
from tacit.likelihood import Likelihood, aligned
from tacit.likelihood.predictive import ClassPredictive
from tacit.methods import Members, Method
from tacit.studies.bench import Problem, make_grid, measure, summarize
from tacit.studies.bench.problems import large_digits
from tacit.testing import CovarianceSuite, LikelihoodSuite, MethodSuite

train, validation, test = tacit.data.digits()
seeds = 3  # small: 2


def show(name, runs):
    """Print means over seeds, with standard errors."""
    columns = [
        f"{key} {torch.tensor([float(run[key]) for run in runs]).mean():.3f} ± "
        f"{torch.tensor([float(run[key]) for run in runs]).std() / len(runs) ** 0.5:.3f}"
        for key in ("nll", "accuracy")
    ]
    print(f"{name:20} {', '.join(columns)}")


# %% [markdown]
# ## A likelihood: counts with an upper bound
#
# Each of the 64 pixels is a count: how many of 16 dots of the original scan were black. Suppose
# that the upper half of an image is known and pixel 36, right below it, is to be predicted. The
# binomial distribution is the first that comes to mind, but ink comes in strokes: a pixel is often
# empty or full, hardly in between. The beta-binomial distribution has a second parameter for that.
# The network returns both: the logit of the mean share, and the logarithm of the concentration.
#
# A likelihood needs `loss` and `predictive`. The loss gets outputs with or without a sample
# dimension in front, and `aligned` refuses targets that fit neither. The prediction is a distribution on
# 0, ..., 16, so a `ClassPredictive` with 17 classes fits, and with it all scores, sets and plots.


# %%
class BetaBinomial(Likelihood):
    """Counts from 0 to `trials`; outputs are (B, 2): logit of the mean, log of concentration."""

    def __init__(self, trials):
        super().__init__()
        self.trials = trials

    def log_probs(self, outputs):
        """Return the logarithms of the probabilities of all counts, (..., trials + 1)."""
        mean, concentration = outputs[..., :1].sigmoid(), outputs[..., 1:].exp()
        a, b = mean * concentration + 1e-4, (1 - mean) * concentration + 1e-4
        n, k = self.trials, torch.arange(self.trials + 1).to(outputs)
        choices = -log_beta(k + 1, n - k + 1) - torch.log(k.new_tensor(n + 1))
        return choices + log_beta(k + a, n - k + b) - log_beta(a, b)

    def loss(self, outputs, targets, *, samples=None):
        outputs, targets = aligned("BetaBinomial", outputs, targets, event=1, samples=samples)
        targets = targets.long().expand(outputs.shape[:-1])
        return -self.log_probs(outputs).gather(-1, targets[..., None]).mean()

    def predictive(self, outputs):
        return ClassPredictive(self.log_probs(outputs))


def log_beta(a, b):
    return torch.lgamma(a) + torch.lgamma(b) - torch.lgamma(a + b)


class Binomial(BetaBinomial):
    """Counts from 0 to `trials`; outputs are (B, 1): logit of the mean."""

    def log_probs(self, outputs):
        counts = torch.arange(self.trials + 1).to(outputs)
        return TorchBinomial(self.trials, logits=outputs).log_prob(counts)


# %% [markdown]
# Test it against something that doesn't share its code: a density that doesn't add up to 1 would
# win any comparison of NLL. What the base class promises is tested by `LikelihoodSuite`, given
# random outputs and targets: among others that functions are averaged, that nothing is broadcast
# silently, and that loss and prediction are of the same distribution. pytest collects such a class
# from a test file; here it runs from the page.


# %%
def test_probabilities_are_those_of_scipy():
    outputs = torch.tensor([[0.3, 1.2], [-2.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    found = BetaBinomial(16).log_probs(outputs)
    mean, concentration = outputs[:, :1].sigmoid(), outputs[:, 1:].exp()
    expected = betabinom(16, mean * concentration, (1 - mean) * concentration)
    expected = torch.tensor(expected.logpmf(torch.arange(17).numpy()))
    torch.testing.assert_close(found, expected, atol=1e-2, rtol=0)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(3).double())


class TestBetaBinomial(LikelihoodSuite):
    def likelihood(self):
        return BetaBinomial(16)

    def outputs(self, count, generator):
        return torch.randn(count, 2, generator=generator, dtype=torch.float64)

    def targets(self, count, generator):
        return torch.randint(17, (count,), generator=generator)


def check(suite):
    """Run pytest on a class, as if it were in a test file; print the last lines."""
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()) as printed:
        path = Path(folder) / f"test_{suite.__name__}.py"
        path.write_text(f"from {__name__} import {suite.__name__}\n")
        options = ["-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:warnings", "-c"]
        pytest.main([str(path), *options, os.devnull])
    for line in printed.getvalue().splitlines():
        if line.startswith("FAILED"):
            print("failed:", line.split("::")[-1].split(" - ")[0])
    print(re.sub(r" in .*", "", line))


test_probabilities_are_those_of_scipy()
check(TestBetaBinomial)

# %% [markdown]
# Now train, with few examples and with all. A categorical distribution over the 17 counts is the
# rival to beat: it can take any shape, but doesn't know that 8 lies between 7 and 9.

# %%
epochs = 30  # small: 1


def counts(part, size=None):
    """Return upper halves, (B, 32), and the counts of pixel 36, (B,)."""
    return part[0][:size, :32], (16 * part[0][:size, 36]).round().long()


def train_counts(likelihood, outputs, size, seed):
    torch.manual_seed(seed)
    net = tacit.models.MLP(32, [64, 64], outputs)
    model = tacit.variational(net, likelihood=likelihood)
    tacit.fit(
        model, counts(train, size), epochs=epochs, batch_size=32, optimizer="adam", lr=0.002,
        average=0.5, seed=seed, progress=False,
    )  # fmt: skip
    return model


models = {}
for size in (200, 900):
    for name, (make, outputs) in {
        "categorical": (tacit.Categorical, 17),
        "binomial": (lambda: Binomial(16), 1),
        "beta-binomial": (lambda: BetaBinomial(16), 2),
    }.items():
        models[name] = [train_counts(make(), outputs, size, seed) for seed in range(seeds)]
        generator = torch.Generator().manual_seed(0)
        runs = [tacit.evaluate(model, counts(test), generator=generator) for model in models[name]]
        show(f"{size}, {name}", runs)

# %%
# alt: Predicted probabilities of the counts 0 to 16 of one pixel, for four test images. In two, the true count is 0 and all three likelihoods say so. In the other two it is 4 and 3: the binomial has a hump around 10 and almost excludes the truth, the beta-binomial is nearly flat, the categorical is ragged with a peak at 0.
x, y = counts(test)
figure, axes = plt.subplots(1, 4, figsize=(10, 2.8), layout="constrained", sharey=True)
colors = {"categorical": "grey", "binomial": "tab:red", "beta-binomial": "tab:blue"}
for axis, i in zip(axes, (0, 1, 2, 4), strict=True):
    for name, color in colors.items():
        generator = torch.Generator().manual_seed(0)
        probs = tacit.predict(models[name][0], x[i : i + 1], generator=generator).probs[0]
        axis.plot(range(17), probs, ".-", color=color, label=name)
    axis.axvline(y[i].item(), color="black", linestyle=":", label="true")
    axis.set(xlabel="black dots", xticks=(0, 4, 8, 12, 16))
axes[0].set_ylabel("probability")
axes[0].legend(fontsize="small")

# %% [markdown]
# The binomial is hopeless: its peaks are far too narrow, and one count outside of them costs more
# than many inside can gain. The beta-binomial beats the categorical at both sizes, by several
# standard errors, with 2 outputs instead of 17. Accuracy hardly differs: what it gains is in how
# the probability is spread over neighbours.
#
# What doesn't come for free: `tacit.calibrate` has no idea what to calibrate here, and says so.
# `tacit.conformal` works, since it only needs the prediction.
#
# ## A covariance: one scale for each tensor
#
# The library's structures have at least one trained number for each row or column of a weight.
# The smallest possible has one for each tensor: w = mean + s z. Is that enough?
#
# A covariance says which tensors it trains (`factors`), how many noise components it takes and how
# it applies them, and a few quantities in closed form. `kl` and `squared_distance` serve the
# objectives with a prior. `learning_rates` takes thought: the gradient of s is the sum of z times
# the gradient over all weights, so with SGD the rate of a single weight is far too large for it.


# %%
@dataclass(frozen=True)
class Isotropic(tacit.covariance.Covariance):
    """S = s I: each tensor of a layer has one standard deviation, up to sign."""

    scale: float = 1.0

    def factors(self, shapes):
        return {name: tacit.covariance.Factor((1,), name, random=False) for name in shapes}

    def noise_size(self, shapes):
        return tacit.covariance.parameter_count(shapes)

    def apply(self, factors, z, shapes):
        parts = z.split([shape.numel() for shape in shapes.values()], dim=-1)
        return {
            name: (factors[name] * part).reshape((*z.shape[:-1], *shapes[name]))
            for name, part in zip(shapes, parts, strict=True)
        }

    def trace(self, factors, shapes):
        terms = [shape.numel() * factors[name][0] ** 2 for name, shape in shapes.items()]
        return torch.stack(terms).sum()

    def squared_distance(self, factors, others, shapes):
        gaps = {name: factors[name].abs() - others[name].abs() for name in shapes}
        return self.trace(gaps, shapes)

    def kl(self, difference, factors, others, shapes):
        total = 0.0
        for name, shape in shapes.items():
            ratio, d = factors[name][0] / others[name][0], difference[name] / others[name][0]
            total = total + shape.numel() * ((ratio**2 - 1) / 2 - ratio.abs().log())
            total = total + d.square().sum() / 2
        return total

    def output_variance(self, factors, features, shapes):
        variance = features.new_zeros(len(features), 1)
        if "weight" in shapes:
            variance = variance + features.square().sum(1, keepdim=True) * factors["weight"] ** 2
        if "bias" in shapes:
            variance = variance + factors["bias"] ** 2
        return variance.expand(-1, next(iter(shapes.values()))[0])

    def learning_rates(self, shapes, scales, rates, family):
        many = {name: shape.numel() if family == "sgd" else 1 for name, shape in shapes.items()}
        return {name: rates[name] / many[name] for name in shapes}


# %% [markdown]
# `CovarianceSuite` has the tests. You say which structures to test, and write Sigma down from its
# definition.


# %%
class TestIsotropic(CovarianceSuite):
    def covariances(self, shapes):
        return [Isotropic(), Isotropic(0.5)]

    def reference(self, covariance, factors, shapes):
        variances = [factors[name].square().expand(s.numel()) for name, s in shapes.items()]
        return torch.cat(variances).diag()


check(TestIsotropic)

# %% [markdown]
# A suite that can't fail is worth nothing. Here is a mistake that training wouldn't show: a trace
# that counts each tensor once.


# %%
class Wrong(Isotropic):
    def trace(self, factors, shapes):
        return torch.stack([factors[name][0] ** 2 for name in shapes]).sum()


class TestWrong(TestIsotropic):
    def covariances(self, shapes):
        return [Wrong()]


check(TestWrong)

# %% [markdown]
# The noise would still be right: only `trace` is wrong, and with it `squared_distance`, which uses
# it here. On to the use. All layers get noise of the same initial scale and are trained alike; the
# last row is the default recipe, for comparison.

# %%
epochs = 20  # small: 1


def train_digits(where, seed):
    torch.manual_seed(seed)
    net = tacit.models.MLP(64, [64, 64], 10)
    model = tacit.variational(net, where, likelihood=tacit.Categorical())
    tacit.fit(model, train, epochs=epochs, batch_size=32, lr=0.05, seed=seed, progress=False)
    return model


for name, where in {
    "Isotropic": {"*": Isotropic(0.5)},
    "Diagonal": {"*": tacit.Diagonal(0.5)},
    "LowRank, rank 3": {"*": tacit.LowRank(3, scale=0.5)},
    "default recipe": None,
}.items():
    found = [train_digits(where, seed) for seed in range(seeds)]
    generator = torch.Generator().manual_seed(0)
    show(name, [tacit.evaluate(model, test, generator=generator) for model in found])

# %% [markdown]
# One scale for each tensor does as well here as one for each weight, or as three directions: the
# differences are within the standard errors. The default, noise relative to the mean, is better
# than all three. So `Isotropic` is no discovery, but it is a baseline that costs nothing: a
# structure with more parameters has to beat it.
#
# ## A method: snapshots of one training
#
# A deep ensemble trains five networks. Snapshot ensembles (Huang et al., 2017) ask for one: the
# learning rate falls to 0 several times, and the network at the end of each cycle is kept. A
# method gets a task, which makes networks (`net`) and trains them (`fit`) with the settings that
# all methods share, and returns a predictor. `Members` is the predictor of the deep ensemble, so
# the method is its settings and one function. `member=` gives each cycle its own data order.


# %%
@dataclass(frozen=True)
class Snapshots(Method):
    """Networks from the ends of the cycles of one training."""

    cycles: int = 5

    def learn(self, task):
        net, nets = task.net(), []
        epochs = max(1, task.settings["epochs"] // self.cycles)
        for cycle in range(self.cycles):
            task.fit(net, member=cycle, epochs=epochs, schedule="cosine")
            nets.append(deepcopy(net))
        task.average("probs")
        return Members(nets, task.likelihood)


class TestSnapshots(MethodSuite):
    regression_epochs = 120  # the mean rate over a cycle is half of a constant one

    def method(self):
        return Snapshots(cycles=2)


check(TestSnapshots)

# %% [markdown]
# The suite trains on small clusters: that it learns, that the seed determines the result, that
# files keep it, and more. What it can't say is whether the method is any good.
#
# ## Compare it
#
# `tacit.studies.bench` measures methods on a problem, from several seeds, on clean and corrupted
# images. Your own problems and methods are named as `module:name`. From the command line it is
# `tacit bench run --data my_module:mlp_digits --methods my_module:snapshots,deep_ensemble --out
# found`, which also runs in parallel and resumes, and `tacit bench report` writes a page.

# %%
mlp_digits = Problem(
    large_digits, lambda: tacit.models.MLP(784, [64, 64], 10), {"sp": 0.02}, kind="mnist"
)
snapshots = Snapshots(5)
others = ("deep_ensemble", "mc_dropout", "implicit_bias_vi")  # small: ()
names = ("standard", f"{__name__}:snapshots", *others)
sizes = {"epochs": 30, "corrupted_size": 200}  # small: {"epochs": 1, "corrupted_size": 2}
cells = make_grid([f"{__name__}:mlp_digits"], names, ["sp"], seeds=seeds, **sizes)
rows = summarize([{**measure(cell), "cell": cell} for cell in cells])
for row in rows:
    numbers = {key: row.numbers[key] for key in ("error", "nll", "corrupted_nll", "seconds")}
    columns = [f"{key} {each.mean:6.3f} ± {each.error:.3f}" for key, each in numbers.items()]
    print(f"{row.method.split(':')[-1]:16} {', '.join(columns)}")

# %%
# alt: Error and NLL on clean digits and NLL on corrupted ones for five methods, with standard errors. The deep ensemble is best on clean digits, snapshots are best on corrupted ones.
panels = {
    title: {
        row.method.split(":")[-1]: (row.numbers[key].mean, row.numbers[key].error) for row in rows
    }
    for key, title in {
        "error": "error, %", "nll": "NLL", "corrupted_nll": "NLL, corrupted"
    }.items()
}  # fmt: skip
comparison = tacit.plots.plot_comparison(panels)

# %% [markdown]
# The deep ensemble is best on clean digits, for three times the training time of all others.
# Snapshots cost no more than one network, and have the lowest NLL on corrupted digits. But on
# clean ones they are worse than the plain network, so whoever wanted a cheap ensemble has not
# found it here. Part of the reason may be that a cycle of six epochs at half the mean rate trains
# less than 30 epochs do; that is a setting to study, with a validation set, before judging the
# method. With three seeds, look at the bars before you rank the rest: a single bad run makes the
# wide one of implicit bias.
#
# ## What to know
#
# - **Type and shape.** A likelihood sees outputs with and without a sample dimension; a covariance
#   sees weights of all shapes, from scalars to convolutions. The suites try them.
# - **Files.** `tacit.save` writes the settings of the library's own classes, no code, so it refuses
#   yours. Write `model.state_dict()` with safetensors and build the model in code. A method
#   that returns `Plain`, `Members` or `Sampled` has no such limit: `tacit.methods.save` works.
# - **Where code lives.** `tacit bench` with several processes imports methods by name: put them in
#   a module. The rest works from a notebook.
# - **Parametrizations, noise and objectives** are small classes too: `Parametrization` has two
#   methods, and a noise distribution one.
#
# Next: the reference of [covariances](../api/covariance.md), [methods](../api/methods.md) and
# [tests](../api/testing.md).
