# %% [markdown]
# # Choosing which inputs to label
#
# Inputs are often plentiful and labels expensive. Active learning trains on a few labels, lets
# the model choose which inputs to label next, and repeats. It pays if the chosen labels teach
# more than as many random ones. That is not a matter of course: some scores choose worse than
# chance. This tutorial does one step by hand, then compares three ways of choosing over the whole
# course.
#
# ## A pool without labels
#
# The pool has 3,000 images of Fashion-MNIST. We have their labels, but only look at those that
# have been chosen. Sixty random images are labelled to begin with.

# %%
import torch
from matplotlib import pyplot as plt

import tacit

data = tacit.data.fashion_mnist()  # small: __import__("small_images").digits()
pool_size, test_size = 3000, 2000  # small: 200, 100
counts = (60, 150, 250, 400)  # small: (30, 130)
steps, seeds = 500, 3  # small: 10, 2
pool, test = data.train[:pool_size], data.test[:test_size]

# %% [markdown]
# The network is trained from scratch after each step, always by about 500 steps of SGD, so that
# more labels don't mean more training.


# %%
def train(images, seed):
    torch.manual_seed(seed)
    model = tacit.variational(tacit.models.LeNet5(), likelihood=tacit.Categorical())
    epochs = -(-steps // -(-len(images) // 32))
    settings = {"lr": 0.02, "batch_size": 32, "average": 0.5, "progress": False}
    tacit.fit(model, images, epochs=epochs, seed=seed, **settings)
    return model


# %% [markdown]
# ## One step
#
# `acquire` predicts the pool and returns the indices of the inputs with the largest score, the
# largest first. For classes the score is the margin, unless another one is named: 1 minus the
# difference of the two largest probabilities. It is large for an image on the border between two
# classes, where a label decides something. Entropy is largest if all classes are equally
# probable.

# %%
# alt: Two rows of seven images.
first, rest = pool[: counts[0]], pool[counts[0] :]
model = train(first, seed=0)
generator = torch.Generator().manual_seed(0)
figure, axes = plt.subplots(2, 7, figsize=(9, 3.2), layout="constrained")
for row, by in zip(axes, ("margin", "entropy"), strict=True):
    chosen = tacit.acquire(model, rest, counts[1] - counts[0], by=by, generator=generator)
    for axis, i in zip(row, chosen, strict=False):
        axis.imshow(rest.pixels[i, 0].numpy(), cmap="gray_r")
        axis.set_title(data.train.class_names[rest.targets[i]], fontsize=10)
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(by)
    classes = rest.targets[chosen].bincount(minlength=10)
    print(by, dict(zip(data.train.class_names, classes.tolist(), strict=True)))

# %% [markdown]
# ## The whole course
#
# Each way of choosing starts from the same 60 labels, and trains from the same initial weights.
# Three seeds change both.


# %%
def learn(by, seed):
    """Return the test accuracy for each number of labels."""
    generator = torch.Generator().manual_seed(seed)
    known = torch.zeros(len(pool), dtype=torch.bool)
    known[torch.randperm(len(pool), generator=generator)[: counts[0]]] = True
    accuracies = []
    for number in (*counts[1:], None):
        model = train(pool[known], seed)
        accuracies.append(tacit.evaluate(model, test, samples=8, generator=generator)["accuracy"])
        if number is not None:
            rest = (~known).nonzero()[:, 0]
            k = number - int(known.sum())
            chosen = tacit.acquire(model, pool[rest], k, by=by, samples=16, generator=generator)
            known[rest[chosen]] = True
    return accuracies


ways = ("random", "margin", "entropy")
accuracy = {by: 100 * torch.tensor([learn(by, seed) for seed in range(seeds)]) for by in ways}
print(f"{'labels':8}" + "".join(f"{count:7}" for count in counts))
for by, found in accuracy.items():
    print(f"{by:8}" + "".join(f"{value:7.1f}" for value in found.mean(0)))

# %%
# alt: Test accuracy.
figure, axis = plt.subplots(figsize=(6.5, 4.2), layout="constrained")
for (by, found), color in zip(accuracy.items(), ("grey", "tab:blue", "tab:red"), strict=True):
    axis.plot(counts, found.mean(0), "o-", color=color, label=by)
    axis.plot(counts, found.T, color=color, linewidth=0.7, alpha=0.5)
axis.set(xlabel="number of labels", ylabel="accuracy on test images, %")
axis.legend()
