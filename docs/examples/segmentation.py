# %% [markdown]
# # Segmentation: a probability for every pixel
#
# A segmentation network classifies every pixel, and averages over pixels hide where it fails: at
# borders, in rare classes, and on things that it was never shown. This page trains a small
# convolutional network, maps its uncertainty, and measures where its probabilities and sets hold.
# No layer and no loss is special to segmentation.
#
# The images are made here: discs of three textures on a plain ground, under noise. The three
# textures have the same mean and the same variance, so that no single pixel tells them apart; the
# network has to look at neighbours. Real images are harder, and their numbers differ. The checks
# below apply to them unchanged.

# %%
import torch
from matplotlib import pyplot as plt
from torch import nn

import tacit

names = ["ground", "rows", "columns", "checks"]
size = 32
row, column = torch.meshgrid(torch.arange(size), torch.arange(size), indexing="ij")


def stripes(position):
    """Return alternating bands of -1 and 1, two pixels wide."""
    return 1.0 - 2.0 * (position % 4 < 2)


textures = torch.stack([stripes(row), stripes(column), stripes(row) * stripes(column)])


def scenes(count, seed):
    """Return noisy images (B, 1, H, W) with a disc of each texture, and labels (B, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    images, labels = (
        torch.zeros(count, size, size),
        torch.zeros(count, size, size, dtype=torch.int64),
    )
    for image, label in zip(images, labels, strict=True):
        for k in torch.randperm(3, generator=generator).tolist():  # later discs cover earlier ones
            y, x, extra = torch.rand(3, generator=generator).tolist()
            disc = (row - 6 - 20 * y) ** 2 + (column - 6 - 20 * x) ** 2 < (5 + 4 * extra) ** 2
            image[disc], label[disc] = textures[k][disc], k + 1
    return (images + 0.6 * torch.randn(images.shape, generator=generator))[:, None], labels


train = scenes(200, seed=0)  # small: scenes(20, seed=0)
validation = scenes(60, seed=1)  # small: scenes(20, seed=1)
calibration = scenes(200, seed=2)  # small: scenes(30, seed=2)
test = scenes(100, seed=3)  # small: scenes(20, seed=3)

# %% [markdown]
# ## Train
#
# The network returns logits of shape (B, C, H, W), as torch's `cross_entropy` wants them.
# `class_dim=1` says so; without it, `tacit.fit` finds the dimension from the first targets.
# Dilated convolutions let each pixel see 13 by 13 neighbours.

# %%
epochs = 12  # small: 1
torch.manual_seed(0)
net = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=2, dilation=2),
    nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=3, dilation=3),
    nn.ReLU(),
    nn.Conv2d(16, len(names), 1),
)
model = tacit.variational(net, likelihood=tacit.Categorical(names, class_dim=1))
tacit.fit(
    model, train, validation, epochs=epochs, batch_size=16, optimizer="adam", lr=0.005,
    progress=False,
)  # fmt: skip
found = tacit.calibrate(model, validation)
print(f"temperature {found.temperature:.2f}: NLL {found.nll_before:.3f}, then {found.nll:.3f}")

# %% [markdown]
# A temperature below 1 sharpens the probabilities. The average over functions is flatter than each
# of them, and here too flat: the network was right more often than it said. For a network without
# noise the temperature is usually above 1.
#
# `evaluate` knows the metrics of dense outputs:

# %%
print(tacit.evaluate(model, test, batch_size=50))

# %% [markdown]
# Accuracy flatters, as the ground is easy and large. The intersection over union does not: pixels
# that are rightly called `checks`, over those that are or are called so. `miou` is its mean over
# classes. `ece` compares confidence and accuracy over all pixels: by this number, the
# probabilities are calibrated.
#
# ## Look at the map
#
# Predictions have the classes last: `probs` is (B, H, W, C), and `label`, `entropy` and
# `mutual_information` are (B, H, W). One test image:

# %%
# alt: Four panels of 32 by 32 pixels: a noisy image of three discs of different texture, the predicted classes, the true classes, and the entropy, which is high along the outlines of the discs and almost zero elsewhere.
images, labels = test
prediction = tacit.predict(model, images, batch_size=50)
overview = tacit.plots.plot_uncertainty_map(images[0], prediction[0], labels[0])
overview.set_size_inches(9, 2.6)

# %% [markdown]
# The entropy draws outlines. Within a texture the network is sure; at a border, half of the
# neighbours that it looks at belong to something else, and the noise decides. To put numbers on
# this, call a pixel a border pixel if the 5 by 5 pixels around it don't have the same label:


# %%
def dilated(labels):
    return nn.functional.max_pool2d(labels[:, None].float(), 5, stride=1, padding=2)[:, 0]


border = dilated(labels) != -dilated(-labels)
correct = prediction.label == labels
print("          pixels  accuracy  confidence  mutual information")
for name, kept in {"border": border, "interior": ~border}.items():
    numbers = (correct[kept], prediction.confidence[kept], prediction.mutual_information[kept])
    accuracy, confidence, disagreement = (each.float().mean() for each in numbers)
    share = kept.float().mean()
    print(f"{name:8} {share:7.0%} {accuracy:9.3f} {confidence:11.3f} {disagreement:19.3f}")

# %% [markdown]
# Practically all mistakes are at borders, and the confidence follows the accuracy in both groups.
# Check this whenever you know a split of your pixels: calibration over all of them can hide too
# much confidence in one part and too little in another.
#
# ## Sets with a guarantee
#
# `tacit.conformal` gives each pixel a set of classes that contains the true one with a stated
# probability. There is a threshold for each position, from the calibration images: what counts is
# the number of images, not of pixels. Neighbouring pixels are wrong together, so a thousand pixels
# of one image are much less than a thousand examples.

# %%
held_out = tacit.predict(model, calibration[0], batch_size=50)
sets = tacit.conformal(held_out, calibration[1], level=0.95)(prediction)
hit = sets.members.gather(-1, labels[..., None])[..., 0]
groups = {"all": labels >= 0, "border": border, "interior": ~border}
groups |= {name: labels == k for k, name in enumerate(names)}
for name, kept in groups.items():
    inside, mean_size = hit[kept].float().mean(), sets.size[kept].float().mean()
    print(f"{name:8} coverage {inside:.3f}, classes in the set {mean_size:.2f}")

# %%
# alt: Three noisy images, and under each the number of classes in the set of each pixel: one nearly everywhere, two or more at scattered pixels along the borders of the discs, most of them where two discs meet.
figure, axes = plt.subplots(2, 3, figsize=(7, 4.8), layout="constrained")
for i, (above, below) in enumerate(axes.T):
    above.imshow(images[i, 0].numpy(), cmap="gray")
    shown = below.imshow(sets.size[i].numpy(), cmap="viridis", vmin=1, vmax=4)
    above.set(title=f"image {i}", xticks=[], yticks=[])
    below.set(title="classes in the set", xticks=[], yticks=[])
figure.colorbar(shown, ax=axes, ticks=range(1, 5), label="classes", shrink=0.6)

# %% [markdown]
# The promise holds over all pixels. It isn't a promise for borders, nor for each class: where the
# network is sure, more than 95 % are covered, and that pays for less elsewhere. With
# `by_class=True` it holds for each class at each position, which takes many more images: a class
# that is rare at a position has too few calibration labels there, and is then in all sets.
#
# ## A texture that it has never seen
#
# Now a disc of diagonal stripes, in the middle of new scenes.

# %%
diagonal = stripes(row + column)
disc = (row - 16) ** 2 + (column - 16) ** 2 < 64
foreign, around = scenes(50, seed=4)  # small: scenes(10, seed=4)
generator = torch.Generator().manual_seed(0)
noise = 0.6 * torch.randn(len(foreign), int(disc.sum()), generator=generator)
foreign[:, 0, disc] = diagonal[disc] + noise
unseen = tacit.predict(model, foreign, batch_size=50)
shares = torch.bincount(unseen.label[:, disc].flatten(), minlength=4) / noise.numel()
print("called", ", ".join(f"{name} {share:.0%}" for name, share in zip(names, shares, strict=True)))
for score in ("entropy", "mutual_information"):
    known, new = prediction.uncertainty(score), unseen.uncertainty(score)[:, disc].mean()
    print(
        f"{score:19} interior {known[~border].mean():.3f}, diagonal stripes {new:.3f}, "
        f"border {known[border].mean():.3f}"
    )

# %%
# alt: A scene with a disc of diagonal stripes in the middle, the predicted classes, in which most of this disc is called checks, and the entropy, which is high along borders and lower, but not zero, in the disc.
surprise = tacit.plots.plot_uncertainty_map(foreign[0], unseen[0])
surprise.set_size_inches(8, 2.8)

# %% [markdown]
# The network has no way to say "none of these". It calls nearly all of the disc `checks`. Its
# uncertainty is many times that within known textures, but about that of an ordinary border: an
# alarm on single pixels that ignores borders ignores the disc as well. What gives the disc away is
# that the uncertainty fills an area. If foreign objects matter, compare features with those of the
# training data too ([foreign inputs](../uncertainty.md)).
#
# ## What not to conclude
#
# - **A map of entropy is not a map of errors.** It says where the network could be wrong if the
#   image is like the training images.
# - **Calibrated over pixels is not calibrated over objects.** The probability that a disc exists
#   is no average over its pixels. Pixels are wrong together; `prediction.select`, which bounds the
#   error rate of the answers, therefore uses one pixel of each image.
# - **Low mutual information is not knowledge.** Sampled functions come from one training on the
#   same images, and can agree on the same wrong answer: look at the middle of the diagonal disc.
#
# Next: [dense and several outputs](../dense-outputs.md) has labels to ignore, memory for large
# images and all metrics.
