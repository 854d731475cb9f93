# %% [markdown]
# # Choosing which inputs to label
#
# Inputs are often plentiful and labels expensive. Active learning trains on a few labels, lets
# the model choose which inputs to label next, and repeats. It pays if the chosen labels teach
# more than as many random ones, and some ways of choosing don't. This tutorial does one step by
# hand, then compares three ways of choosing with the same number of labels.
#
# ## A pool without labels
#
# The pool has 3,000 images of Fashion-MNIST. Their labels exist, but we use only those of images
# that have been chosen. Sixty random images are labelled to begin with.

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
# The network is a small MLP, so that this page is quick. It is trained from scratch after each
# step, and always by about 300 steps of SGD, so that more labels don't mean more training. There
# is no validation set: it would need labels too.


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
# difference of the two largest probabilities. It is large on the border of two classes, where a
# label decides something. The entropy is large if many classes are probable.

# %%
# alt: Seven images chosen by margin, with their labels: pullover, bag, shirt, dress, coat, T-shirt, coat. Seven chosen by entropy: shirts, pullovers and a T-shirt, some with prints or of unusual shape.
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
# Both ask for few trousers, sneakers and boots, which sixty labels already tell apart. The margin
# asks for plain garments that look like two classes, the entropy for unusual ones. But pictures
# of what was chosen don't tell whether it helps.
#
# ## The whole course
#
# Only the accuracy on test images does, compared with that of random labels. With few labels it
# varies much from run to run, so each way has six runs. In each, all ways share the first labels
# and the initial weights; so differences to random can be taken run by run.


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
    gain = (accuracy[by] - accuracy["random"])[:, 1:]
    print(f"{by} - random, at {counts[-1]} labels:", *(f"{each:+.1f}" for each in gain[:, -1]))
    for text, each in ((f"mean at {counts[-1]}", gain[:, -1]), ("mean of all steps", gain.mean(1))):
        print(f"  {text}: {each.mean():+.1f} ± {each.std() / seeds**0.5:.1f}")

# %%
# alt: Left: accuracy against the number of labels, from 64 % with 60 labels to 78 or 79 % with 400. Margin is above random and entropy, which agree. Right: difference to random with standard errors. Margin is 0.5 to 1.3 points better, by one to two standard errors; entropy is near 0.
colors = dict(zip(ways, ("grey", "tab:blue", "tab:red"), strict=True))
figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for shift, (by, found) in zip((0, -3, 3), accuracy.items(), strict=True):
    left.plot(counts, found.mean(0), "o-", color=colors[by], label=by)
    if by != "random":
        gain = (found - accuracy["random"])[:, 1:]
        at = [count + shift for count in counts[1:]]
        settings = {"capsize": 3, "color": colors[by], "label": by}
        right.errorbar(at, gain.mean(0), gain.std(0) / seeds**0.5, fmt="o", **settings)
right.axhline(0, color="grey")
left.set(xlabel="number of labels", ylabel="accuracy on test images, %")
right.set(xlabel="number of labels", ylabel="difference to random, points", ylim=(-1.5, 3.5))
left.legend()
right.legend()

# %% [markdown]
# ## What this says
#
# Margin is better than random at every number of labels, by about a point. With six runs that is
# one to two standard errors (the bars): a hint, not a proof. A single run says nothing at all: at
# 400 labels, the six differences go from -2 to almost +4.
#
# The entropy brings no gain. In a larger study, with LeNet-5, a pool of 10,000 images, up to 500
# labels and eight runs, margin gains 2.9 ± .5 points at 500 labels, and the largest entropy loses
# 2.8 ± 1.3: see [Labels for a pool](../uncertainty.md#labels-for-a-pool). That study is the
# reason why margin is the default. It was on the same images; other data have not been tried.
#
# ## In your application
#
# - Label a random test set first, and keep it. The chosen inputs are not a sample of the pool:
#   they are harder, and neither accuracy nor a temperature can be had from them.
# - Choose many at once only if labelling takes long. The inputs with the largest scores resemble
#   each other; `acquire(..., by="mutual_information", power=1.0)` draws at random in proportion
#   to the score instead, and gained 2.0 ± .3 points at 500 labels in the study.
# - Compare with random labels now and then: `by="random"` is the same call.
# - For regression the default score is `"epistemic_std"`. Noise in the targets is not worth a
#   label.
