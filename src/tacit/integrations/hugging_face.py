"""Models in folders and on Hugging Face's hub, with a model card: safetensors and JSON, no code.

Requires Hugging Face's libraries: `pip install 'tacit-torch[hf]'`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from torch import nn

from tacit._support import files
from tacit.calling import Variational
from tacit.inference.saving import load, save
from tacit.weights.adapter import describe_adapters

if TYPE_CHECKING:
    import huggingface_hub as hub
    import transformers
else:
    try:
        import huggingface_hub as hub
        import transformers
    except ModuleNotFoundError as error:
        if error.name not in ("huggingface_hub", "transformers"):
            raise
        raise ModuleNotFoundError(
            "tacit.integrations.hugging_face needs Hugging Face's libraries: "
            "pip install 'tacit-torch[hf]'",
            name=error.name,
        ) from None

__all__ = ["from_pretrained", "push_to_hub", "save_pretrained"]

WEIGHTS = (
    "tacit.safetensors"  # not model.safetensors: from_pretrained of transformers can't read it
)
SETTINGS = "tacit.json"
SUFFIXES = ("*.json", "*.safetensors", "*.txt", "*.model")  # what is downloaded: no code


def save_pretrained(
    model: Variational,
    folder: str | Path,
    *,
    tokenizer: Any = None,
    metrics: Mapping[str, float] | None = None,
    base: str | None = None,
    description: str = "",
) -> Path:
    """Write a model to a folder: weights, settings, configuration, and a model card.

    Args:
        model: A variational model with a likelihood.
        folder: The folder; it is created, and files of an earlier call are replaced.
        tokenizer: Tokenizer or processor to store with it.
        metrics: Metrics for the card, as from `tacit.evaluate`.
        base: Name or folder of the pretrained model, if the model has adapters; by default the one
            that the module was loaded from.
        description: Text for the card: data, intended use, limits.

    Returns:
        The folder.

    Raises:
        TypeError: If the model is not variational, or can't be described in a file.
        ValueError: If it has no likelihood, or adapters and no base.

    Examples:
        >>> import tempfile, tacit
        >>> from tacit.integrations.hugging_face import from_pretrained, save_pretrained
        >>> net = tacit.models.MLP(4, [8], 2)
        >>> model = tacit.variational(net, likelihood=tacit.Categorical(["no", "yes"]))
        >>> folder = save_pretrained(model, tempfile.mkdtemp(), metrics={"nll": 0.4})
        >>> sorted(path.name for path in folder.iterdir())
        ['README.md', 'tacit.json', 'tacit.safetensors']
        >>> from_pretrained(folder).likelihood.class_names
        ('no', 'yes')
    """
    if not isinstance(model, Variational):
        raise TypeError(
            "save_pretrained: expected a model made by tacit.variational, received "
            f"{type(model).__name__}."
        )
    if model.likelihood is None:
        raise ValueError(
            "save_pretrained: expected a model with a likelihood, without which nobody can predict "
            "with it: tacit.variational(net, likelihood=tacit.Categorical())."
        )
    folder, config = Path(folder), getattr(model.module, "config", None)
    settings = {"class": type(model.module).__name__, "base": _base(model, base)}
    save(model, folder / WEIGHTS)
    files.write_json(folder / SETTINGS, settings)
    if isinstance(config, transformers.PretrainedConfig):
        config.save_pretrained(folder)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)
    card = model_card(model, settings, metrics or {}, description, tokenizer is not None)
    files.write_bytes(folder / "README.md", card.encode())
    return folder


def from_pretrained(
    name: str | Path,
    net: nn.Module | None = None,
    *,
    base: str | Path | None = None,
    revision: str | None = None,
) -> Variational:
    """Return the model that `save_pretrained` or `push_to_hub` wrote, in eval mode.

    Args:
        name: A folder, or the name of a repository of the hub, which is downloaded.
        net: The plain network. Optional for models of transformers and of `tacit.models`, which are
            made from their configuration.
        base: With adapters on a model of transformers, in place of the network: the name or folder
            of the pretrained model. The one that the files name is in the error without it; it is
            not fetched by itself.
        revision: Branch, tag or commit of the repository.

    Raises:
        FileNotFoundError: If the folder or repository doesn't hold such a model; if there is no
            such repository, the hub's own error.
        ValueError: If its files are damaged, don't fit the network, or need one.

    Examples:
        >>> import tempfile, tacit, torch
        >>> from tacit.integrations.hugging_face import from_pretrained, save_pretrained
        >>> model = tacit.variational(torch.nn.Linear(4, 2), likelihood=tacit.Categorical())
        >>> folder = save_pretrained(model, tempfile.mkdtemp())
        >>> again = from_pretrained(folder, torch.nn.Linear(4, 2))  # a network of your own
        >>> x = torch.randn(3, 4)
        >>> torch.equal(again(x), model.eval()(x))
        True
    """
    folder = Path(name)
    if not folder.is_dir():
        patterns = list(SUFFIXES)
        folder = Path(hub.snapshot_download(str(name), revision=revision, allow_patterns=patterns))
    for part in (WEIGHTS, SETTINGS):
        if not (folder / part).is_file():
            raise FileNotFoundError(
                f"from_pretrained: {name} has no {part}; expected a folder or repository written "
                "by tacit.integrations.hugging_face."
            )
    if net is None and (folder / "config.json").is_file():
        net = _network(folder, base)
    return load(folder / WEIGHTS, net)


def push_to_hub(
    model: Variational,
    repository: str,
    *,
    private: bool | None = None,
    message: str = "Upload a tacit model",
    token: str | None = None,
    **settings: Any,
) -> str:
    """Upload a model to Hugging Face's hub.

    Args:
        model: A variational model with a likelihood.
        repository: Name of the repository, "user/name"; created if there is none.
        private: Whether a new repository is private.
        message: Message of the commit.
        token: Access token; by default the one of `hf auth login`.
        **settings: Arguments of `save_pretrained`: tokenizer, metrics, base, description.

    Returns:
        The URL of the commit.

    Raises:
        ValueError: If the base of its adapters is a folder.

    Examples:
        >>> import tacit
        >>> from tacit.integrations.hugging_face import push_to_hub
        >>> net = tacit.models.MLP(4, [8], 2)
        >>> model = tacit.variational(net, likelihood=tacit.Categorical(["no", "yes"]))
        >>> push_to_hub(model, "user/name", private=True, metrics={"nll": 0.4})  # doctest: +SKIP
    """
    base = _base(model, settings.get("base"))
    if base is not None and Path(base).exists():
        raise ValueError(
            f"push_to_hub: {base} is a folder of this machine; expected the name by which others "
            'find the pretrained model, base="user/name".'
        )
    with TemporaryDirectory() as folder:
        save_pretrained(model, folder, **settings)
        client = hub.HfApi(token=token)
        name = client.create_repo(repository, private=private, exist_ok=True).repo_id
        done = client.upload_folder(repo_id=name, folder_path=folder, commit_message=message)
    return str(done.commit_url)


def _base(model: Variational, given: str | None) -> str | None:
    """Return the name of the pretrained model that the adapters of a model need."""
    if describe_adapters(model.module) is None:
        return None
    found = given or getattr(getattr(model.module, "config", None), "_name_or_path", None)
    if not found:
        raise ValueError(
            "save_pretrained: the model has adapters, whose file holds only what is trained; "
            "expected base=, the name of the pretrained model."
        )
    return str(found)


def _network(folder: Path, base: str | Path | None) -> nn.Module:
    """Return the module that a folder's configuration describes; no code of the folder runs."""
    try:
        settings = json.loads((folder / SETTINGS).read_text())
        name, wanted = settings["class"], settings["base"]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{folder / SETTINGS} is damaged: {error}") from error
    kind = getattr(transformers, str(name), None)
    if not isinstance(kind, type) or not issubclass(kind, transformers.PreTrainedModel):
        raise ValueError(
            f"from_pretrained: {folder} holds a {name}, which is not a model of transformers; pass "
            "the network: from_pretrained(name, net)."
        )
    configuration: Any = kind.config_class
    config = configuration.from_pretrained(folder)
    if wanted is None:
        made: nn.Module = kind(config)
        return made
    if base is None:
        raise ValueError(
            f"from_pretrained: {folder} holds adapters of {wanted!r}; pass the pretrained model, "
            f"as base={str(wanted)!r} if that is where you have it from, or as net."
        )
    pretrained: nn.Module = kind.from_pretrained(base, config=config, use_safetensors=True)
    return pretrained


def model_card(
    model: Variational,
    settings: Mapping[str, Any],
    metrics: Mapping[str, float],
    description: str,
    tokenizer: bool,
) -> str:
    """Return the text of a model card: what the model is, its metrics, and how to predict."""
    kind, base = settings["class"], settings["base"]
    title = f"{kind} with a distribution over its weights"
    data = hub.ModelCardData(
        library_name="tacit-torch",
        tags=["uncertainty", "bayesian"],
        pipeline_tag="text-classification" if "SequenceClassification" in kind else None,
        base_model=base if base and not Path(base).exists() else None,
    )
    what = f"Adapters of {base}" if base else f"A {kind}"
    lines = [
        f"---\n{data.to_yaml()}\n---\n\n# {title}\n",
        f"{what}, with a distribution over its weights by tacit (`pip install tacit-torch`), so "
        f"that predictions come with their uncertainty. Likelihood: `{model.likelihood}`.\n",
        *([f"{description}\n"] if description else []),
        *_table(metrics),
        f"## How to predict\n\n```python\n{_usage(model, base, tokenizer)}\n```\n",
        "Scores of uncertainty rank inputs; none is a guarantee far from the training data.",
    ]
    return "\n".join(lines) + "\n"


def _table(metrics: Mapping[str, float]) -> list[str]:
    if not metrics:
        return []
    rows = "\n".join(f"| {name} | {float(value):.4g} |" for name, value in metrics.items())
    return [f"## Metrics\n\n| metric | value |\n| --- | --- |\n{rows}\n"]


def _usage(model: Variational, base: str | None, tokenizer: bool) -> str:
    configured = isinstance(getattr(model.module, "config", None), transformers.PretrainedConfig)
    known = configured and hasattr(transformers, type(model.module).__name__)
    own = model.module.__module__.startswith("tacit.models")
    adapted = describe_adapters(model.module) is not None
    known = known or (own and not adapted)
    given = '"this-repository"' if known else '"this-repository", net'
    given += f', base="{base}"' if known and adapted else ""
    lines = [
        "import tacit",
        "from tacit.integrations.hugging_face import from_pretrained",
        "",
        f"model = from_pretrained({given})",
    ]
    if tokenizer:
        lines[1:1] = ["from transformers import AutoTokenizer"]
        lines += [
            'tokenizer = AutoTokenizer.from_pretrained("this-repository")',
            'inputs = tokenizer(["a text", "another"], padding=True, return_tensors="pt")',
        ]
    lines += ["prediction = tacit.predict(model, inputs)", "print(prediction.to_frame())"]
    return "\n".join(lines)
