# %% [markdown]
# # Forecasts: a scale per step, and whole paths
#
# A forecast of the next 24 hours is not 24 forecasts. Each hour has its own uncertainty, which
# usually grows with the lead time; and what happens at noon depends on what happened at eleven.
# This page trains one network for all steps, checks its intervals per step and jointly, and then
# looks at what people ask of a forecast: the total of a day, its peak, its steepest rise.
# Intervals that are right for every hour can be badly wrong for these. The page ends with a
# remedy.
#
# The series is simulated: three years of a town's demand for electricity, hourly, in MW. It has a
# season, a daily shape that differs on weekends, weather that changes over days, and disturbances
# that last some hours and are larger in the evening. No real series behaves so well. In return we
# know what a good answer looks like.

# %%
import math
from itertools import pairwise

import torch
from matplotlib import pyplot as plt
from scipy.signal import lfilter

import tacit

generator = torch.Generator().manual_seed(0)
days = 1100  # small: 200
hour = torch.arange(24 * days) % 24
day = torch.arange(24 * days) // 24


def bump(centre, width):
    return torch.exp(-(((hour - centre) / width) ** 2))


def wander(hours):
    """Return noise of variance 1 that forgets its past in so many hours: AR(1)."""
    keep = math.exp(-1 / hours)
    shocks = torch.randn(len(hour), generator=generator)
    return torch.tensor(lfilter([math.sqrt(1 - keep**2)], [1, -keep], shocks)).float()


weekend = (day % 7 >= 5).float()
season = 50 + 12 * torch.cos(2 * math.pi * day / 365)
shape = 14 * (1 - weekend) * bump(8, 2.5) + 6 * weekend * bump(11, 3) + 18 * bump(19, 3)
disturbance = (1 + 1.5 * bump(18, 4)) * wander(4.5)
demand = season + shape + 4 * wander(72) + disturbance

# %% [markdown]
# ## Examples
#
# A forecast is made each midnight. Its inputs are the last 48 hours, the day of the week and the
# season; its targets are the next 24 hours. Since it always starts at the same time, each output
# belongs to one hour of the day.
#
# The split is by time. In a random split the network would be tested on days between its training
# days, whose weather it has seen on both sides. Here it trains on the oldest days; then come those
# that decide when to stop, those that calibrate, and the test.

# %%
targets = demand.reshape(days, 24)
date = torch.arange(days)
weekday = torch.nn.functional.one_hot(date % 7, 7).float()
angle = 2 * math.pi * date[:, None] / 365
x = torch.cat([targets.roll(2, 0), targets.roll(1, 0), weekday, angle.sin(), angle.cos()], 1)[7:]
last_week, y = targets[:-7], targets[7:]

cuts = [0, *(int(share * len(x)) for share in (0.55, 0.64, 0.78)), len(x)]
train, validation, calibration, test = (slice(*pair) for pair in pairwise(cuts))
print(x.shape, y.shape, [end - start for start, end in pairwise(cuts)])

# %% [markdown]
# ## One network for all steps
#
# Targets of shape (B, 24) are all it takes. `tacit.Gaussian` has a noise scale for each output,
# and `tacit.fit` sets the 24 scales on the validation days, after training.
# (`HeteroscedasticGaussian`, with 48 outputs, would make them depend on the inputs too.)

# %%
epochs = None  # small: 2


def forecaster(y):
    """Return a network trained to forecast y."""
    torch.manual_seed(0)
    net = tacit.models.MLP(x.shape[1], [64, 64], y.shape[1])
    model = tacit.variational(net, likelihood=tacit.Gaussian())
    parts = (x[train], y[train]), (x[validation], y[validation])
    tacit.fit(model, *parts, epochs=epochs, progress=False)
    return model


model = forecaster(y)
prediction = tacit.predict(model, x[test], generator=generator)
for name, forecast in {"same hour last week": last_week[test], "network": prediction.mean}.items():
    print(f"{name:20} RMSE {(forecast - y[test]).square().mean().sqrt():.2f} MW")

# %% [markdown]
# The demand of last week is the forecast to beat, and it is beaten. Now one day of the test.
# `sample` draws paths: each is one sampled function, plus noise for each hour.

# %%
# alt: Fan chart of one day: bands of 50, 80 and 95 % around two peaks in the morning and the evening, wider in the evening, with the demand as dots near the median and three paths that zigzag within the bands.
one = 10
hours = torch.arange(24)
fan = tacit.plots.plot_quantiles(prediction[one], hours, y[test][one])
axes = fan.axes[0]
for path in prediction[one].sample(3, generator=generator)[:, 0]:
    axes.plot(hours, path, color="tab:orange", linewidth=1, label="path")
handles, labels = axes.get_legend_handles_labels()
axes.legend(handles[:6], labels[:6], fontsize="small", loc="upper left")
axes.set(xlabel="hour of the day", ylabel="demand, MW", xticks=range(0, 24, 3))

# %% [markdown]
# The bands widen from left to right. One thing is wrong already: the paths jump from hour to hour,
# and the demand does not. More on this below.
#
# ## Each step
#
# The standard deviation that the network predicts should be the size of its errors, hour by hour,
# and nine in ten targets should be inside their 90 % intervals. With this many test days the
# standard error of a coverage is about 0.02.

# %%
rmse = (prediction.mean - y[test]).square().mean(0).sqrt()
std, inside = prediction.std.mean(0), prediction.coverage_by_output(y[test], 0.9)
print("hour  predicted std  RMSE  coverage")
for h in range(0, 24, 3):
    print(f"{h:4} {std[h]:14.2f} {rmse[h]:5.2f} {inside[h]:9.2f}")

# %% [markdown]
# The network found that the first hours are easy, because the last hours before midnight say much
# about them, and that the evening is hard. A single scale for all steps would be too wide at night
# and too narrow in the evening. The scales are somewhat larger than the errors, and most coverages
# above 0.9: they were set on the validation days, where the errors were larger. A hundred days are
# few for this, the more so since errors last for days.
#
# ## All steps at once
#
# A plan for the whole day fails if one hour leaves its interval. With `joint=True` the intervals
# of a day are widened together, until whole paths lie inside with the stated probability.

# %%
boxes = {
    "24 intervals": prediction.interval(0.9),
    "joint": prediction.interval(0.9, joint=True, generator=generator),
}
for name, (low, high) in boxes.items():
    whole = ((low <= y[test]) & (y[test] <= high)).all(1).float().mean()
    print(f"{name:13} whole days inside {whole:.2f}, mean width {(high - low).mean():.1f} MW")

held_out = tacit.predict(model, x[calibration], generator=generator)
box = tacit.conformal(held_out, y[calibration], level=0.9, joint=True)(prediction)
inside, width = box.coverage(y[test]), box.width.mean()
print(f"conformal     whole days inside {inside:.2f}, mean width {width:.1f} MW")

# %% [markdown]
# Of 24 intervals that hold nine times in ten, at least one fails on many days: they are no
# statement about a day. The joint ones hold, and more often than they say. They are sized for the
# model's own paths, and those jump, so they leave a box more easily than the demand does. The
# conformal boxes, sized on real days, come nearer to 0.9 with less width.
#
# The guarantee of conformal intervals needs days that are exchangeable, and days in sequence
# aren't quite. Calibrating on the days just before the test is a good approximation while nothing
# changes. Check coverage as the days come in.
#
# ## Totals, peaks, rises
#
# Paths answer any question about a day: compute the answer for each path, and take quantiles. That
# is only as good as the paths.


# %%
def report(paths):
    """Print coverage and width of 90 % intervals for functions of a day, from paths (n, B, 24)."""
    questions = {
        "each hour": lambda day: day,
        "total of the day, MWh": lambda day: day.sum(-1),
        "peak, MW": lambda day: day.amax(-1),
        "steepest rise, MW/h": lambda day: day.diff(dim=-1).amax(-1),
    }
    for name, question in questions.items():
        low, high = question(paths).quantile(torch.tensor([0.05, 0.95]), 0)
        truth = question(y[test])
        inside = ((low <= truth) & (truth <= high)).float().mean()
        print(f"{name:22} coverage {inside:.2f}  width {(high - low).mean():6.1f}")


jagged = prediction.sample(500, generator=generator)
report(jagged)

# %% [markdown]
# Every hour is right, and everything else is wrong. The intervals of the total are far too narrow:
# independent errors cancel in a sum, real ones don't, because a day that is warmer than expected
# is so for hours. The rise is wrong in the other direction: jagged paths rise more steeply than
# days do. The reason is in the likelihood: given the function, the noise of each hour is
# independent of the others. The functions do share their errors over hours, but they account for a
# small part of the spread. Compare the errors with the paths:

# %%
errors = y[test] - prediction.mean
noise = jagged - jagged.mean(0)
for name, each in {"errors": errors, "paths": noise.flatten(0, 1)}.items():
    r = torch.corrcoef(each.T)[12]
    print(f"{name:7} correlation of noon with 13:00 {r[13]:5.2f}, with 18:00 {r[18]:5.2f}")

# %% [markdown]
# ## A remedy: forecast in coordinates whose errors are uncorrelated
#
# Independent noise is no restriction if it is independent in the right coordinates. The
# eigenvectors of the errors' covariance are such: "the whole day higher", "the evening higher than
# the morning", and so on, 24 of them, orthogonal. They are estimated on days before the
# calibration. A second network forecasts the coordinates, each with its own scale, and its paths
# are turned back into hours. Only targets and paths are multiplied by a matrix; everything else
# stays.

# %%
before = slice(cuts[2])  # training and validation days
residuals = y[before] - tacit.predict(model, x[before], generator=generator).mean
basis = torch.linalg.eigh(torch.cov(residuals.T)).eigenvectors  # (24, 24)

rotated = tacit.predict(forecaster(y @ basis), x[test], generator=generator)
smooth = rotated.sample(500, generator=generator) @ basis.T
report(smooth)

# %%
# alt: Left, noise per hour: five paths zigzag around the demand of a day. Right, noise per coordinate: five paths are as smooth as the demand, some above it for hours, some below.
figure, panels = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
titles = "noise per hour", "noise per coordinate"
for axes, paths, title in zip(panels, (jagged, smooth), titles, strict=True):
    for path in paths[:5, one]:
        axes.plot(hours, path, color="tab:orange", linewidth=1)
    axes.plot(hours, y[test][one], color="black", label="demand")
    axes.set(title=title, xlabel="hour of the day", xticks=range(0, 24, 6))
panels[0].set_ylabel("demand, MW")
panels[0].legend()

# %% [markdown]
# Now the paths look like days, and all four coverages are a little above 0.9, as those of single
# hours were before. The network and the likelihood are of the same kind; only the coordinates have
# changed.
#
# ## What not to conclude
#
# - **Coverage per step says nothing about paths.** Check each quantity that a decision depends on,
#   from paths, on test days. If it is a single one, such as the total, train on it directly: a
#   network with one output needs no paths.
# - **Intervals are wide where the noise is, not where the model is wrong.** A holiday, a strike or
#   a new factory is in no band. `epistemic_std` compares inputs with the training data, not the
#   future with the past.
# - **The remedy is a constant covariance.** It has one set of coordinates for all days. If errors
#   are smooth on some days and jagged on others, no rotation describes both.
# - **A simulated series ends the argument too early.** Its noise is Gaussian and never changes. On
#   your own series, expect the test coverage to be lower than on the validation days, and to fall
#   with time since training.
#
# Next: [dense and several outputs](../dense-outputs.md) has shapes and names,
# [calibration](../calibration.md) the fan charts.
