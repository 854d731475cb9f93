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
counts = (60, 120, 200, 300, 400)  # small: (30, 130)
steps, seeds = 300, 6  # small: 10, 2
pool, test = data.train[:pool_size], data.test[:test_size]

# %% [markdown]
# The network is trained from scratch after each step, always by about 300 steps of SGD, so that
# more labels don't mean more training.


# %%
def train(images, seed):
    torch.manual_seed(seed)
    net = tacit.models.MLP(784, [128, 128], 10)
    model = tacit.variational(net, likelihood=tacit.Categorical())
    epochs = -(-steps // -(-len(images) // 32))
    settings = {"lr": 0.02, "batch_size": 32, "average": 0.5, "progress": False}
    tacit.fit(model, images, epochs=epochs, seed=seed, **settings)
    return model


def first_labels(seed):
    """Return which images of the pool have a label at the beginning."""
    order = torch.randperm(len(pool), generator=torch.Generator().manual_seed(seed))
    return order.argsort() < counts[0]


first_models = [train(pool[first_labels(seed)], seed) for seed in range(seeds)]

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
model, rest = first_models[0], pool[~first_labels(0)]
generator = torch.Generator().manual_seed(0)
figure, axes = plt.subplots(2, 7, figsize=(9, 3.2), layout="constrained")
for row, by in zip(axes, ("margin", "entropy"), strict=True):
    chosen = tacit.acquire(model, rest, counts[1] - counts[0], by=by, generator=generator)
    for axis, i in zip(row, chosen, strict=False):
        axis.imshow(rest.pixels[i, 0].numpy(), cmap="gray_r")
        axis.set_title(data.train.class_names[rest.targets[i]], fontsize=10)
        axis.set(xticks=[], yticks=[])
    row[0].set_ylabel(by)
    numbers = rest.targets[chosen].bincount(minlength=10).tolist()
    found = zip(data.train.class_names, numbers, strict=True)
    print(f"{by}: " + ", ".join(f"{number} {name}" for name, number in found))

# %% [markdown]
# ## The whole course
#
# Each way of choosing starts from the same 60 labels, and trains from the same initial weights.
# Six seeds change both.


# %%
def learn(by, seed):
    """Return the test accuracy for each number of labels."""
    generator = torch.Generator().manual_seed(seed)
    known, model = first_labels(seed), first_models[seed]
    accuracies = [tacit.evaluate(model, test, generator=generator)["accuracy"]]
    for count in counts[1:]:
        rest = (~known).nonzero()[:, 0]
        k = count - int(known.sum())
        chosen = tacit.acquire(model, pool[rest], k, by=by, generator=generator)
        known[rest[chosen]] = True
        model = train(pool[known], seed)
        accuracies.append(tacit.evaluate(model, test, generator=generator)["accuracy"])
    return accuracies


ways = ("random", "margin", "entropy")
accuracy = {by: 100 * torch.tensor([learn(by, seed) for seed in range(seeds)]) for by in ways}

# %%
print(f"{'labels':8}" + "".join(f"{count:7}" for count in counts))
for by, found in accuracy.items():
    print(f"{by:8}" + "".join(f"{value:7.1f}" for value in found.mean(0)))
for by in ways[1:]:
    gain = (accuracy[by] - accuracy["random"])[:, -1]
    error = gain.std() / seeds**0.5
    print(
        f"{by} - random at {counts[-1]} labels: {gain.mean():+.1f} ± {error:.1f}; each seed:",
        end="",
    )
    print("".join(f"{each:+5.1f}" for each in gain))

# %%
# alt: ALT2
colors = dict(zip(ways, ("grey", "tab:blue", "tab:red"), strict=True))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for by, found in accuracy.items():
    left.plot(counts, found.mean(0), "o-", color=colors[by], label=by)
    if by != "random":
        gain = found - accuracy["random"]
        settings = {"capsize": 3, "color": colors[by], "label": f"{by} - random"}
        right.errorbar(counts, gain.mean(0), gain.std(0) / seeds**0.5, fmt="o-", **settings)
right.axhline(0, color="grey")
left.set(xlabel="number of labels", ylabel="accuracy on test images, %")
right.set(xlabel="number of labels", ylabel="percentage points")
left.legend()
right.legend()
