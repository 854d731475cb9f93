# %% [markdown]
# # A calibrated image classifier
#
# A classifier is calibrated if nine in ten of the predictions that it makes with 90 % confidence
# are right. Its confidence can then be used: to answer only if it is high, or to pass doubtful
# images to a person. This tutorial trains LeNet-5 on pictures of clothes twice, as a plain
# network and with random weights, and asks three questions. Are the confidences right on test
# images? Are they still right when images are degraded? What can be guaranteed?
#
# ## Data
#
# Fashion-MNIST has ten classes of grey images of 28 x 28. We train on 4,000 of them, few enough
# to overfit. The validation images are for the temperature only. The test images come in two
# parts: one to check the confidences, and one for the guarantees at the end, which need images
# that nothing else has used.

# %%
from dataclasses import replace

import torch
from matplotlib import pyplot as plt

import tacit

data = tacit.data.fashion_mnist()  # small: __import__("small_images").digits()
size = 2000  # small: 300
train, validation = data.train[: 2 * size], data.validation[:size]
test, held_out = data.test[:size], data.test[size : 2 * size]

# %% [markdown]
# ## Two networks
#
# First the plain network. `tacit.fit` trains it too; it has no likelihood of its own, so we pass
# one. We keep its predictions on the test images as they are, then fit a temperature on the
# validation images: one number, which divides all logits. A temperature above 1 lowers every
# confidence; no label changes.

# %%
settings = {"epochs": 40, "lr": 0.05, "average": 0.5, "progress": False}  # small: {"epochs": 10}

torch.manual_seed(0)
net = tacit.models.LeNet5()
likelihood = tacit.Categorical(train.class_names)
tacit.fit(net, train, likelihood=likelihood, **settings)
uncalibrated = tacit.predict(net, test, likelihood=likelihood)
found = tacit.calibrate(net, validation, likelihood=likelihood)
print(f"plain: temperature {found.temperature:.2f}")

# %% [markdown]
# The predictions were far too confident: the logits have to be divided by more than two.
#
# Then the same network with random weights, from the same initial weights. `tacit.variational`
# gives all layers but the first noise in proportion to their weights, and in training each image
# has its own draw of it. Nothing else differs.

# %%
torch.manual_seed(0)
model = tacit.variational(tacit.models.LeNet5(), likelihood=tacit.Categorical(train.class_names))
tacit.fit(model, train, **settings)
found = tacit.calibrate(model, validation)
print(f"random weights: temperature {found.temperature:.2f}")

# %% [markdown]
# The noise has kept the network from most of the overconfidence. The training images show why:
# the plain network fits almost all of them, and then goes on raising its confidences, which
# lowers the training loss and nothing else.

# %%
fitted = tacit.predict(net, train, likelihood=likelihood), tacit.predict(model, train)
for name, prediction in zip(("plain", "random weights"), fitted, strict=True):
    accuracy = (prediction.label == train.targets).double().mean()
    print(f"{name}: accuracy on training images {accuracy:.1%}")

# %% [markdown]
# ## Test images
#
# A prediction has probabilities, a label, a confidence and several scores of uncertainty; for a
# model with random weights it averages 32 sampled functions.

# %%
predictions = {
    "plain": uncalibrated,
    "plain, temperature": tacit.predict(net, test, likelihood=likelihood),
    "random weights, temperature": tacit.predict(model, test),
}
print(f"{'':28}accuracy    NLL    ECE")
for name, prediction in predictions.items():
    scores = prediction.scores(test.targets)
    print(f"{name:28}{scores['accuracy']:8.1%}{scores['nll']:7.3f}{scores['ece']:7.3f}")

# %% [markdown]
# The temperature repairs the plain network: its NLL falls by a quarter, its labels stay. Random
# weights lower the NLL further. Their accuracy is a percentage point higher; that is close to
# chance, since another draw of the 32 functions changes it by half a point.
#
# ECE is the mean distance of confidence and accuracy over 15 bins of confidence. It isn't 0 on
# finite data even if all confidences are right. How large it is then can be simulated: draw from
# the confidences which predictions are correct.

# %%
confidence = predictions["random weights, temperature"].confidence
chance = torch.tensor(
    [tacit.metrics.calibration_error(confidence, torch.rand(size) < confidence) for _ in range(200)]
)
print(
    f"ECE of perfect calibration: {chance.mean():.3f}, at most {chance.quantile(0.95):.3f} in 95 %"
)

# %% [markdown]
# So the ECE doesn't tell the two calibrated networks apart: both could be perfect. Nor does the
# reliability diagram. Only the plain network without a temperature is below the diagonal, where
# predictions are right less often than they say: of those made with 96 % confidence, 77 % are
# right.

# %%
# alt: Accuracy against confidence in ten bins. With a temperature both networks are near the diagonal. The plain network without one is far below it.
figure, axis = plt.subplots(figsize=(6, 4.5), layout="constrained")
axis.plot([0, 1], [0, 1], "--", color="grey", label="calibrated")
for name, prediction in predictions.items():
    bins = tacit.metrics.reliability(
        prediction.confidence, prediction.label == test.targets, bins=10, adaptive=True
    )
    axis.plot(bins.confidence, bins.accuracy, "o-", label=name)
axis.set(xlabel="confidence (mean of a bin)", ylabel="accuracy", xlim=(0.3, 1), ylim=(0.3, 1))
axis.legend()
# %% [markdown]
# ## The most and the least certain images
#
# Numbers hide what a network is uncertain about. Sort the predictions by entropy, and look. Red
# labels are wrong.

# %%
# alt: Twelve pictures with label and confidence. Most certain: six trousers, all labelled so with 100 %. Least certain, at 21 to 36 %: a coat, a light bag, a dress, two pullovers and a bag with a print; four labels are wrong.
prediction = predictions["random weights, temperature"]
order = prediction.entropy.argsort()
figure, axes = plt.subplots(2, 6, figsize=(9, 4.2), layout="constrained")
for axis, i in zip(axes.flat, [*order[:6], *order[-6:]], strict=True):
    axis.imshow(test.pixels[i, 0].numpy(), cmap="gray_r")
    right = prediction.label[i] == test.targets[i]
    label, truth = (train.class_names[k] for k in (prediction.label[i], test.targets[i]))
    text = f"{label}, {prediction.confidence[i]:.0%}" + ("" if right else f"\nis a {truth}")
    axis.set_title(text, fontsize=10, color="black" if right else "tab:red")
    axis.set(xticks=[], yticks=[])
for axis, text in zip(axes[:, 0], ("most certain", "least certain"), strict=True):
    axis.set_ylabel(text)

# %% [markdown]
# The certain images are the typical ones. Among the uncertain ones are prints, light cloth and
# garments at an angle, and most of the labels are wrong: the confidences of 20 to 40 % were right
# to be low.
#
# ## Degraded images
#
# A temperature is fitted on images like the training images, and holds for such. Here the test
# images are degraded in five ways, with five severities each. Does confidence fall as accuracy
# does?

# %%
kinds = ("shot_noise", "glass_blur", "fog", "rotate", "translate")
few = test[: size // 5]
networks = {
    "plain, temperature": (net, likelihood),
    "random weights, temperature": (model, model.likelihood),
}


def degraded(images, severity):
    """Return images with each kind of corruption, one kind after the other."""
    pixels = [tacit.data.corrupt(images.pixels, kind, severity) for kind in kinds]
    return replace(images, pixels=torch.cat(pixels), targets=images.targets.repeat(len(kinds)))


accuracy, confidence, nll = ({name: [] for name in networks} for _ in range(3))
for severity in range(6):
    images = degraded(few, severity) if severity else few
    for name, (network, own) in networks.items():
        prediction = tacit.predict(network, images, likelihood=own)
        accuracy[name].append((prediction.label == images.targets).float().mean())
        confidence[name].append(prediction.confidence.mean())
        nll[name].append(prediction.scores(images.targets)["nll"])
print(f"{'NLL at severity':28}" + "".join(f"{severity:7}" for severity in range(6)))
for name, values in nll.items():
    print(f"{name:28}" + "".join(f"{value:7.2f}" for value in values))

# %%
# alt: Accuracy and mean confidence of both networks against severity. From severity 0 to 5 accuracy falls from 87 to 38 %. Confidence falls from 86 to 57 %, and is above accuracy from severity 3 on. Accuracy is higher with random weights at each severity, most of all at 1 and 2.
figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
for name, color in zip(networks, ("tab:orange", "tab:green"), strict=True):
    axis.plot(confidence[name], "o--", color=color, label=f"{name}: confidence")
    axis.plot(accuracy[name], "o-", color=color, label=f"{name}: accuracy")
axis.set(xlabel="severity (0: as they are)", ylabel="accuracy, mean confidence", ylim=(0.3, 1))
axis.legend(fontsize="small")
# %% [markdown]
# Accuracy falls by more than half, confidence by a third: from severity 3 on both networks are
# overconfident, for the temperature was fitted on intact images, and is too low for these. Random
# weights make mild degradations less harmful, in accuracy and in NLL. At severities 4 and 5 they
# make hardly a difference.
#
# These are five of fifteen corruptions, and one training. [The comparison](../benchmark.md) has
# all of them with three seeds: on corrupted images the default has a lower NLL than a plain
# network, and a higher one than dropout and an ensemble of five networks.
#
# ## Answer, or abstain
#
# `select` finds the lowest confidence above which at most 5 % of the answers are wrong. This is a
# bound, not an estimate: it holds with a probability of 95 % over draws of the held-out images,
# whatever the network.

# %%
risk = 0.05  # small: 0.5
rule = tacit.predict(model, held_out).select(held_out.targets, risk=risk)
shifted = degraded(few, 3)
for name, images in (("test images", test), ("degraded images", shifted)):
    prediction = tacit.predict(model, images)
    answered = rule(prediction)
    wrong = (prediction.label != images.targets)[answered].float().mean()
    print(f"{name}: {answered.float().mean():.0%} answered, {wrong:.1%} of the answers wrong")

# %% [markdown]
# On test images the rule answers two thirds and keeps the bound, with a margin, because it has to
# keep it for 95 % of the possible held-out sets. On degraded images it answers less often, as it
# should, but a fifth of the answers are wrong. The bound is for images from the distribution of
# the held-out ones, and for no others.
#
# ## A set of classes
#
# Instead of abstaining, a classifier can name several classes. `conformal` finds the threshold
# such that the set contains the true class with the given probability.

# %%
sets = tacit.conformal(tacit.predict(model, held_out), held_out.targets, level=0.95)
for name, images in (("test images", test), ("degraded images", shifted)):
    found = sets(tacit.predict(model, images))
    coverage, number = found.coverage(images.targets), found.size.float().mean()
    print(f"{name}: {coverage:.1%} contain the true class, {number:.2f} classes on average")
for names in sets(tacit.predict(model, test)).label_names[:6]:
    print(names)

# %% [markdown]
# Most sets have one class, and doubtful images have more. Degraded images have larger sets, but
# not large enough: this guarantee, too, is for images like the held-out ones.
#
# ## What to take along
#
# - Fit a temperature, for any network. It takes a pass over the validation data, and made the
#   largest difference on this page.
# - The ECE of a few thousand images can't tell good calibration from very good. Compare the NLL,
#   and look at the reliability diagram.
# - Random weights gave a better NLL, intact and mildly degraded, for [about 1.2 times the
#   price](../cost.md) of a plain training step. They also give functions that can disagree:
#   [finding foreign inputs](foreign_inputs.md) uses that.
# - No confidence, bound or set holds for images unlike those it was calibrated on. Calibrate on
#   images like those in use, and watch whether these change.
