# %% [markdown]
# # Tune small, train large
#
# A learning rate takes several trainings to find, and on a large network each of them is
# expensive. It would be cheaper to tune a narrow copy and keep its rate for the wide network. In
# the standard parametrization, one rate for all tensors, this can fail: the best rate may depend
# on the width. The maximal update parametrization, muP, scales the initialization and the rate of
# each tensor so that it doesn't. This page measures what goes wrong, whether muP repairs it, and
# whether the wide network is then as good as one that was tuned itself. Here it is not.
#
# The data are scikit-learn's digits, 8 by 8 pixels, so that all of it runs in minutes. Of the
# 1,000 images that are not for testing, 300 choose rates; a hundred would be few for that.

# %%
import statistics
import time

import torch
from matplotlib import pyplot as plt
from torch import nn

import tacit

train, validation, test = tacit.data.digits()
images, labels = (torch.cat(pair) for pair in zip(train, validation, strict=True))
train, validation = (images[:700], labels[:700]), (images[700:], labels[700:])

# %% [markdown]
# ## Two parametrizations
#
# The network is an MLP with two hidden layers, of width 32 for tuning and of width 1,024 in the
# end. `MaximalUpdate(base=...)` takes a copy at the narrow width. There it is the standard
# parametrization; at larger widths it follows the rules of muP relative to it. `tacit.initialize`
# draws the means, and a variational model passes its parametrization on to the optimizer.

# %%
small, wide = 32, 1024  # small: 8, 32


def plain(width):
    hidden = [nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def maker(parametrization):
    """Return a function from a width to a new variational model."""

    def make_model(width):
        net = plain(width)
        tacit.initialize(net, parametrization)
        likelihood = tacit.Categorical()
        return tacit.variational(net, likelihood=likelihood, parametrization=parametrization)

    return make_model


ways = {"standard": tacit.Standard(), "muP": tacit.MaximalUpdate(base=plain(small))}
makers = {name: maker(way) for name, way in ways.items()}
print(f"width {wide}            initial std   factor of Adam's rate")
for name, way in ways.items():
    for row in tacit.describe(plain(wide), way):
        if "weight" in row.name:
            print(f"{name:8}  {row.name}  {row.std:11.4f}   {row.adam:.4f}")

# %% [markdown]
# A step of Adam changes each weight by about the rate, however small the gradient. A unit of the
# wide network sums 1,024 such changes, where one of the narrow network sums 32. muP therefore
# divides the rates of the upper layers by the ratio of the widths, and starts the output layer at
# smaller weights. With SGD it does something else; these rules are for Adam.
#
# ## Does the best rate move?
#
# `tacit.transfer_learning_rate` trains every width with every rate of a grid, here from three
# seeds, and reports how much is lost at each width with the rate that is best for the narrow
# network.

# %%
between = [128, 512]  # small: [16]
steps, seeds = 100, 3  # small: 5, 2
grid = [2.0**power for power in range(-12, -2)]  # small: [0.01, 0.1]
settings = {"validation": validation, "optimizer": "adam", "steps": steps, "seeds": seeds}
found = {
    name: tacit.transfer_learning_rate(
        make, train, small=small, large=between, grid=grid, progress=False, **settings
    )
    for name, make in makers.items()
}
for name, result in found.items():
    print(f"{name}: {result}")

# %%
# alt: Validation loss against learning rate for widths 32, 128 and 512. Left, standard: the lowest point moves to smaller rates as the width grows. Right, muP: it stays near the dotted line, the best rate of width 32.
curves = tacit.plots.plot_learning_rates({name: r.to_dict() for name, r in found.items()})


# %%
def spread(result, width):
    """Return the rate that is best for each seed alone."""
    trials = [trial for trial in result.trials if trial.width == width]
    of_seed = [[t for t in trials if t.seed == seed] for seed in range(seeds)]
    return sorted(min(each, key=lambda trial: trial.loss).lr for each in of_seed)


for name, result in found.items():
    for width in result.widths:
        rates = ", ".join(f"{rate:.4f}" for rate in spread(result, width))
        print(f"{name:8}  width {width:4}  best rate of each seed: {rates}")

# %% [markdown]
# In the standard parametrization the best rate falls to an eighth from width 32 to 512, and the
# rate of the narrow network costs much there. In muP the best rate stays within a factor of 2,
# the step of the grid, and single seeds disagree by as much; the transferred rate costs a few per
# cent. But look at the losses too, not only at where their minimum is: at width 512 the lowest one
# is that of the standard parametrization.
#
# With SGD in place of Adam, the best rate of this network moved by no more than one step of the
# grid in either parametrization: test your own case, since the two calls above are all it takes.
#
# ## Why it moves
#
# `tacit.coordinate_check` takes five steps on one batch and measures how far the outputs of each
# layer move. It needs no tuning and no validation data, and it is quick.

# %%
check_widths = [32, 64, 128, 256, 512]  # small: [8, 16]
batch = train[0][:64], train[1][:64]
checks = {
    name: tacit.coordinate_check(
        make, check_widths, batch, lr=0.004, optimizer="adam", seeds=seeds, progress=False
    )
    for name, make in makers.items()
}
for name, check in checks.items():
    print(f"{name}: {check}")

# %%
# alt: Change of the features after five steps against the width, one panel for each of three layers. In the first layer both parametrizations are level; in the second and third the standard one grows with the width, muP is level.
figure, axes = plt.subplots(1, 3, figsize=(9, 3), layout="constrained", sharey=True)
for axis, layer in zip(axes, checks["muP"].layers, strict=True):
    for name, check in checks.items():
        rows = [row for row in check.changes if row.layer == layer and row.step == 5]
        means = [statistics.fmean(r.mean for r in rows if r.width == w) for w in check_widths]
        axis.plot(check_widths, means, "o-", label=f"{name}: width^{check.slope(layer):+.2f}")
    axis.set(title=f"layer {layer}", xlabel="width", xscale="log", yscale="log")
    axis.set_xticks(check_widths, labels=map(str, check_widths))
    axis.minorticks_off()
    axis.legend(fontsize="small")
axes[0].set_yticks([0.2, 0.5, 1, 2], labels=["0.2", "0.5", "1", "2"])
axes[0].set_ylabel("change of the features")

# %% [markdown]
# In the standard parametrization, a step moves the outputs of a wide network further than those of
# a narrow one: a rate that suits width 32 is too large for 512. In muP all layers move equally. The check judges the mean features; the noise of the output layer shrinks
# with the width in muP ([why](../parametrizations.md#scaling-of-the-covariance-factors)).
#
# ## Train the wide network
#
# Now for the network that we wanted, of width 1,024, trained to the end: with the transferred rate
# in both parametrizations, and, for comparison, with the best of all rates of the grid by the
# validation NLL, which is the search that one would like to save.

# %%
epochs = 20  # small: 1
trained, seconds = {}, {}


def final(name, width, lr, seed):
    """Train to the end; return NLL on validation and test data, and test accuracy."""
    torch.manual_seed(seed)
    model, start = makers[name](width), time.process_time()
    tacit.fit(
        model, train, epochs=epochs, batch_size=64, optimizer="adam", lr=lr, schedule="cosine",
        seed=seed, progress=False,
    )  # fmt: skip
    seconds.setdefault(width, []).append(time.process_time() - start)
    generator = torch.Generator().manual_seed(0)
    parts = [tacit.evaluate(model, part, generator=generator) for part in (validation, test)]
    return parts[0]["nll"], parts[1]["nll"], 100 * parts[1]["accuracy"]


for name in ways:
    for lr in grid:
        runs = [final(name, wide, lr, seed) for seed in range(seeds)]
        trained[name, lr] = torch.tensor(runs)
narrow = torch.tensor([final("muP", small, found["muP"].lr, seed) for seed in range(seeds)])


def show(text, lr, runs):
    errors = runs.std(0) / seeds**0.5
    numbers = zip(runs.mean(0).tolist(), errors.tolist(), (3, 3, 1), strict=True)
    cells = [f"{mean:.{digits}f} ± {error:.{digits}f}" for mean, error, digits in numbers]
    print(f"{text:34} {lr:.4f}  {'   '.join(cells)}")


print(f"{'':34} rate    validation NLL  test NLL        test accuracy, %")
show(f"width {small}", found["muP"].lr, narrow)
for name in ways:
    own = min(grid, key=lambda lr: trained[name, lr][:, 0].mean())
    for text, lr in {"transferred": found[name].lr, "own search": own}.items():
        show(f"width {wide}, {name}, {text}", lr, trained[name, lr])
for width, each in seconds.items():
    print(f"width {width}: one training takes {statistics.median(each):.1f} s")

# %% [markdown]
# What the numbers say:
#
# - With the rate of the narrow network, the wide one gains from its width in muP only. In the
#   standard parametrization it isn't better than the narrow network.
# - The search at full width finds a standard network that is better than the one which the same
#   search finds in muP. A rate that transfers is one thing, the best network another. Why the
#   standard one is better here, on 700 examples and at a small rate, this page doesn't tell, and
#   other data or longer training may turn it round.
# - One wide training takes about as long as nine narrow ones, so trying ten rates at width 32
#   costs about as much as one attempt at width 1,024. The ratio grows with the width, and the case
#   for muP with it: where a search is out of the question, the rows "own search" don't exist.
#
# ## In your application
#
# - Run `transfer_learning_rate` once, on widths that you can afford, with three seeds. If it says
#   that the rate of the standard parametrization transfers, you need no muP.
# - A best rate at the edge of the grid says nothing; the result then prints a warning.
# - Choose a base that works by itself, wide enough that its curve has the shape of the wider ones.
# - Only the learning rate has been transferred here, across widths. Depth, batch size and the
#   length of training are other questions.
#
# Next: [parametrizations](../parametrizations.md) has the rules and their limits,
# [choose a learning rate](../how-to/choose-a-learning-rate.md) the other ways.
