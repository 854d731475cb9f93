# %% [markdown]
# # Tables: intervals with a guarantee
#
# A table with a number to predict is the most common regression problem. This page goes from such
# a table to intervals that hold what they promise. It takes the longer way round, because the
# short way looks fine and isn't: intervals that pass a random split can be too narrow where they
# are needed.
#
# The table has 1,030 concrete specimens (Yeh, 1998; UCI Machine Learning Repository). Seven
# columns are the mix, in kg per cubic metre; `age` is in days; `strength` is the pressure at which
# the specimen broke, in MPa. Whoever designs a mix wants to know its strength before it is poured,
# and an engineer needs to know how far the prediction may be off.

# %%
import os
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from matplotlib import pyplot as plt
from sklearn.linear_model import LinearRegression

import tacit
from tacit.cli import main
from tacit.integrations.sklearn import VariationalRegressor

concrete = tacit.data.uci("concrete", standardise=False)  # small: [torch.rand(300, 9).split(8, 1)]
rows = torch.cat([torch.cat(part, 1) for part in concrete])
columns = ["cement", "slag", "ash", "water", "plasticizer", "gravel", "sand", "age"]
table = pd.DataFrame(rows.numpy().round(2), columns=[*columns, "strength"])
table["mix"] = table.groupby(columns[:-1]).ngroup()
print(table.head().to_string(index=False, float_format="%.1f"))
print(f"{len(table)} rows, {table['mix'].nunique()} mixes")

# %% [markdown]
# ## Split as you will predict
#
# There are more rows than mixes: many mixes were tested at several ages. A random split puts rows
# of one mix on both sides. The network then meets, in the test, mixes that it knows from training,
# and all scores flatter it. The question was about mixes that nobody has tested. So whole mixes
# are held out: one fifth to calibrate intervals, one fifth to check them. Of each of these, one
# row is drawn, so that no mix counts more than another.
#
# To see what a random split would have said, a fifth of the remaining rows is held out too:
# `familiar` has other rows of mixes that the network knows.


# %%
def split(seed):
    """Return rows to train on, other rows of the same mixes, and rows of two sets of new mixes."""
    mixes = np.random.default_rng(seed).permutation(table["mix"].nunique())
    parts = np.split(mixes, [3 * len(mixes) // 5, 4 * len(mixes) // 5])
    known, *new = (table[table["mix"].isin(part)] for part in parts)
    train = known.sample(frac=0.8, random_state=seed)
    new = [part.groupby("mix").sample(1, random_state=seed) for part in new]
    return train, known.drop(train.index), *new


train, familiar, calibration, test = split(seed=0)
print(*(len(part) for part in (train, familiar, calibration, test)))

# %% [markdown]
# ## Train, predict
#
# `VariationalRegressor` is the library as a scikit-learn estimator. It standardises the columns,
# decides when to stop, and chooses a noise scale for each row. Columns of texts, dates and missing
# values would need no preparation either ([scikit-learn](../scikit-learn.md)).

# %%
epochs = None  # small: 2


def fit(rows):
    regressor = VariationalRegressor(epochs=epochs, random_state=0)
    return regressor.fit(rows[columns], rows["strength"])


regressor = fit(train)
prediction = regressor.predictive(test[columns])
low, high = prediction.interval(0.9)
shown = {"strength": test["strength"], "mean": prediction.mean, "low": low, "high": high}
print(pd.DataFrame(shown).head().to_string(index=False, float_format="%.1f"))

# %% [markdown]
# Predictions are in MPa, as the targets are. `mean`, `low` and `high` are tensors with an entry
# per row, and `prediction` has more: `quantile(q)`, `cdf(y)`, `log_prob(y)`, `std`.
#
# Before any talk of uncertainty, a network has to earn its place. A linear model is the least that
# it should beat:

# %%
linear = LinearRegression().fit(train[columns], train["strength"])
for name, found in {
    "linear": linear.predict(test[columns]),
    "network": prediction.mean.numpy(),
}.items():
    error = np.sqrt(np.mean((found - test["strength"]) ** 2))
    print(f"{name:8} RMSE {error:.1f} MPa")

# %% [markdown]
# It does, clearly: water, cement and age act together, not one by one. On many tables it doesn't,
# and on others a random forest is better: [twelve tables](../regression.md#how-good-it-is).
#
# Now the intervals, for specimens of new mixes, in the order of the predictions:

# %%
# alt: 90 % intervals of 86 specimens as vertical bars of different lengths, sorted by predicted strength from about 5 to 80 MPa, and a dot for each measured strength. Far more than one dot in ten is outside its bar, and red.
order = prediction.mean.argsort()
y = torch.tensor(test["strength"].to_numpy())
inside = (low <= y) & (y <= high)
figure, axes = plt.subplots(figsize=(7, 3.6))
position = torch.arange(len(y))
axes.vlines(position, low[order], high[order], color="tab:blue", alpha=0.35, linewidth=4)
for kind, color, label in ((inside, "black", "inside"), (~inside, "tab:red", "outside")):
    axes.plot(position[kind[order]], y[order][kind[order]], ".", color=color, label=label)
axes.set(xlabel="specimens of new mixes, by predicted strength", ylabel="strength, MPa")
axes.legend(title="90 % interval", loc="upper left")
plt.tight_layout()

# %% [markdown]
# The bars have different lengths: the noise scale depends on the row. With one scale for all rows,
# intervals would be too wide for some mixes and too narrow for others.
#
# ## Do the intervals hold?
#
# `coverage` counts the targets inside their intervals. It should be 0.9. With n rows its standard
# error is (0.9 · 0.1 / n)^½, here about 0.03: differences of a few hundredths mean nothing.

# %%
known = regressor.predictive(familiar[columns])
print(f"known mixes: {known.coverage(familiar['strength'], 0.9):.3f} of {len(familiar)} rows")
print(f"new mixes:   {prediction.coverage(test['strength'], 0.9):.3f} of {len(test)} rows")

# %%
# alt: Left: observed coverage against nominal coverage, above a level of .3 clearly below the diagonal. Right: histogram of the predicted probabilities F(y), with its highest columns at both ends.
coverage = tacit.plots.plot_coverage(prediction, test["strength"])

# %% [markdown]
# The left panel asks the same of all levels: a curve below the diagonal means intervals that are
# too narrow. The right one shows where targets fall in their predicted distributions. Columns that
# are high at both ends say the same: too many targets in the tails.
#
# Known mixes miss 0.9 too: the estimator sets its noise scale on a tenth of the rows, some fifty.
# The larger part of the gap is the split, again. These rows are held out at random, and many of
# them share their mix with training rows, so that they measure how far off the network is on mixes
# that it knows.
#
# ## A guarantee
#
# `tacit.conformal` takes predictions for rows that were used for nothing else, with their targets,
# and returns a function that turns predictions into intervals. It stretches them by one factor,
# just so that the calibration rows are inside often enough. For a new row that is exchangeable
# with the calibration rows, the target is inside with probability 0.9 or more, whatever the model:
# a bad one gets wide intervals. Which rows calibrate decides what the promise is worth:


# %%
def intervals(regressor, train, familiar, calibration, test):
    """Return coverage and mean width of intervals for new mixes, without and with calibration."""
    prediction, found = regressor.predictive(test[columns]), {}
    low, high = prediction.interval(0.9)
    found["model"] = prediction.coverage(test["strength"], 0.9), (high - low).mean().item()
    for name, part in {"known mixes": familiar, "new mixes": calibration}.items():
        stretch = tacit.conformal(regressor.predictive(part[columns]), part["strength"], level=0.9)
        bounds = stretch(prediction)
        found[name] = bounds.coverage(test["strength"]), bounds.width.mean().item()
    return {
        f"{kind}, {name}": pair[i]
        for i, kind in enumerate(("coverage", "width"))
        for name, pair in found.items()
    }


splits = 5  # small: 2
found = [intervals(regressor, train, familiar, calibration, test)]
found += [intervals(fit(parts[0]), *parts) for parts in map(split, range(1, splits))]
found = pd.DataFrame(found)
found.loc["mean"] = found.mean()
found.columns = found.columns.str.split(", ", expand=True)
print(found.round(2).to_string())

# %% [markdown]
# Each line is another split, with a training of its own. On new mixes, and on average,
#
# - the intervals of the model contain too few targets;
# - those that were calibrated on other rows of known mixes, as a random split would have done,
#   contain more, but fewer than nine in ten: a guarantee for a question that nobody asked;
# - those calibrated on new mixes hold, and the width says what that costs.
#
# Single splits scatter: there are 86 specimens to calibrate and as many to check. The guarantee is
# an average over both, so a line below 0.9 doesn't contradict it. Nor does one line above 0.9
# support the other columns. Repeat splits before you believe a coverage.
#
# ## Two kinds of uncertainty
#
# `std` has two parts. `aleatoric_std` is the noise: what varies between specimens whose columns
# agree. `epistemic_std` is the disagreement of the sampled functions. Here the first dominates.
# This doesn't mean that the network knows all mixes: how large the disagreement is depends on the
# noise that its weights started with, too. Compare it between rows, rather than with the noise.
#
# The disagreement rises where there are no data. Suppose that a typing error doubles the water:

# %%
flooded = regressor.predictive(test[columns].assign(water=2 * test["water"]))
for name, each in {"as measured": prediction, "twice the water": flooded}.items():
    print(
        f"{name:16} mean {each.mean.mean():5.1f}  epistemic {each.epistemic_std.mean():4.1f}  "
        f"aleatoric {each.aleatoric_std.mean():4.1f}"
    )

# %% [markdown]
# The functions disagree much more, which is a good reason to raise a flag. The predicted noise
# does the opposite: it falls, and with it `std` and the width of the intervals. The noise scale is
# an output of the network, and far from the data it is as arbitrary as the mean. So use
# `epistemic_std` to find such rows, not `std`, and don't use their intervals at all. No
# calibration covers them: they are not exchangeable with anything.
#
# ## The same without Python
#
# `tacit train` takes a CSV. It holds out rows for the intervals by itself, and `tacit predict`
# writes a CSV with intervals and, in the column `foreign`, the reason why a row is unlike the
# training data. These lines run what the program `tacit` runs:

# %%
folder, before = tempfile.mkdtemp(), Path.cwd()
os.chdir(folder)
pd.concat([train, familiar]).drop(columns="mix").to_csv("known_mixes.csv", index=False)
test[[*columns, "strength"]].to_csv("new_mixes.csv", index=False)
test[columns].assign(water=2 * test["water"]).head(3).to_csv("flooded.csv", index=False)
for command in (
    "tacit train known_mixes.csv --target strength --out strength.safetensors",
    "tacit evaluate strength.safetensors new_mixes.csv",
    "tacit predict strength.safetensors flooded.csv --out predictions.csv",
):
    print(f"$ {command}")
    main(command.split()[1:])
    print()
print(pd.read_csv("predictions.csv").to_string(index=False))
os.chdir(before)

# %% [markdown]
# `coverage_90` is that of the model's own intervals for new mixes, `interval_coverage_90` that of
# the conformal ones, which the CSV has. Read the line below the table to its end: "for inputs like
# those of training". The program holds out random rows of the table, so its promise is about known
# mixes, even if it happens to hold for these new ones too. When rows come in groups (mixes,
# patients, machines, days), hold out groups yourself, as above. The flooded rows are flagged
# twice: the water is outside of the training range, and the functions disagree more than on 99 %
# of held-out rows.
#
# ## What not to conclude
#
# - **Not a promise for each row.** Nine in ten of all intervals hold. Among old specimens, or
#   among strong mixes, it may be fewer. If a group matters, calibrate it alone: a level of 0.9
#   needs at least nine rows of it, and a hundred to be stable.
# - **Not a promise for other data.** Another cement works, another laboratory: collect a few dozen
#   rows there and call `tacit.conformal` again. The network can stay.
# - **Not a reason for wide intervals.** If 90 % intervals are too wide to be useful, no
#   calibration helps; a better model or better columns do. Among intervals that hold, the narrower
#   are better: `interval_score_90` measures both.
#
# Next: [regression](../regression.md) has the other likelihoods and what happens inside,
# [calibration](../calibration.md) the other plots.
