"""Folders and repositories of the hub: weights, settings, a card, and no code."""

import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import tacit
from nets import generator, mlp

transformers = pytest.importorskip("transformers")
hub = pytest.importorskip("huggingface_hub")
pytest.importorskip("accelerate")
pytest.importorskip("peft")

from test_hugging_face import LABELS, WORDS, bert  # noqa: E402

from tacit.integrations.hugging_face import from_pretrained, save_pretrained  # noqa: E402

pytestmark = pytest.mark.xdist_group("hugging face")

NAMES = ("red", "green", "blue")


@pytest.fixture(autouse=True)
def offline(monkeypatch):
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)


def wrapped(net=None, where=None):
    net = bert() if net is None else net
    return tacit.variational(net, where, likelihood=tacit.Categorical(list(NAMES))).eval()


def samples(model):
    return model(WORDS, samples=3, generator=generator()).logits


def tokenizer():
    tokenizers = pytest.importorskip("tokenizers")
    words = {"[PAD]": 0, "[UNK]": 1, **{f"w{i}": i for i in range(2, 20)}}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]"
    )


def test_a_model_comes_back_with_its_class_names_and_samples(tmp_path):
    model = wrapped()
    model.likelihood.set_temperature(1.5)
    save_pretrained(model, tmp_path / "model")
    loaded = from_pretrained(tmp_path / "model")
    assert type(loaded.module) is transformers.BertForSequenceClassification
    assert loaded.likelihood.class_names == NAMES
    assert loaded.likelihood.temperature == 1.5
    assert torch.equal(samples(loaded), samples(model))


def test_a_folder_holds_safetensors_and_json_alone(tmp_path):
    folder = save_pretrained(wrapped(), tmp_path, tokenizer=tokenizer())
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json", ".md"}
    assert not (folder / "model.safetensors").exists()  # transformers would load it half
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.BertForSequenceClassification.from_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"


def test_adapters_come_back_on_their_base(tmp_path):
    bert().save_pretrained(tmp_path / "base")
    kind = transformers.BertForSequenceClassification
    net = kind.from_pretrained(tmp_path / "base")
    model = wrapped(net, tacit.adapters(2))
    nn.init.normal_(net.bert.encoder.layer[0].output.dense.adapter.up.weight)
    folder = save_pretrained(model, tmp_path / "adapters")
    with pytest.raises(ValueError, match="holds adapters of"):
        from_pretrained(folder)
    loaded = from_pretrained(folder, base=tmp_path / "base")
    assert torch.equal(samples(loaded), samples(model))
    assert "Adapters of " in (folder / "README.md").read_text()
    weights = "*.safetensors"
    own, base = (next((tmp_path / n).glob(weights)).stat().st_size for n in ("adapters", "base"))
    assert own < base


def test_adapters_of_a_network_without_a_name_need_a_base(tmp_path):
    with pytest.raises(ValueError, match="expected base=, the name of the pretrained model"):
        save_pretrained(wrapped(where=tacit.adapters(2)), tmp_path)


def test_the_card_tells_metrics_and_its_code_predicts(tmp_path, monkeypatch, capsys):
    model = wrapped()
    metrics = tacit.evaluate(model, ({"input_ids": WORDS}, LABELS), samples=4)
    save_pretrained(
        model, tmp_path / "this-repository", tokenizer=tokenizer(), metrics=metrics,
        description="Words with colours.",
    )  # fmt: skip
    card = hub.ModelCard.load(tmp_path / "this-repository" / "README.md")
    assert card.data.library_name == "tacit-torch"
    assert card.data.pipeline_tag == "text-classification"
    assert f"| accuracy | {metrics['accuracy']:.4g} |" in card.text
    assert "Words with colours." in card.text
    monkeypatch.chdir(tmp_path)
    code = re.search(r"```python\n(.*?)```", card.text, re.DOTALL)[1]
    exec(code.replace("a text", "w2 w3 w4"), {})
    assert any(name in capsys.readouterr().out for name in NAMES)


def test_networks_of_ones_own_are_passed(tmp_path):
    model = tacit.variational(mlp(4, 8, 3), likelihood=tacit.Categorical()).eval()
    folder = save_pretrained(model, tmp_path)
    x = torch.randn(3, 4)
    assert torch.equal(from_pretrained(folder, mlp(4, 8, 3))(x), model(x))
    with pytest.raises(ValueError, match="which is not in tacit.models; pass the network"):
        from_pretrained(folder)
    assert "net)" in (folder / "README.md").read_text()


def test_what_is_not_such_a_folder(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"has no tacit\.safetensors"):
        from_pretrained(tmp_path)
    with pytest.raises(TypeError, match="expected a model made by tacit.variational"):
        save_pretrained(bert(), tmp_path)
    with pytest.raises(ValueError, match="expected a model with a likelihood"):
        save_pretrained(tacit.variational(bert()), tmp_path)


def test_nothing_in_a_folder_is_executed(tmp_path):
    folder = save_pretrained(wrapped(), tmp_path / "model")
    mark = tmp_path / "executed"
    settings = json.loads((folder / "tacit.json").read_text())
    for name in ("os", "AutoConfig", "pipeline", "nothing", 3):
        (folder / "tacit.json").write_text(json.dumps({**settings, "class": name}))
        with pytest.raises(ValueError, match="which is not a model of transformers"):
            from_pretrained(folder)
    (folder / "tacit.json").write_text("[]")
    with pytest.raises(ValueError, match="is damaged"):
        from_pretrained(folder)

    class Malicious:
        def __reduce__(self):
            return os.mkdir, (str(mark),)

    (folder / "tacit.json").write_text(json.dumps(settings))
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Malicious()))
    (folder / "modeling.py").write_text(f"import os\nos.mkdir({str(mark)!r})\n")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModelForSequenceClassification": "modeling.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(samples(from_pretrained(folder)), samples(wrapped()))
    assert not mark.exists()


def test_push_and_load_by_the_hubs_client_and_a_server_on_this_machine(tmp_path):
    worker = str(Path(__file__).parent / "hub_worker.py")
    done = subprocess.run(
        [sys.executable, worker, str(tmp_path)], capture_output=True, text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["same"]
    assert "/me/name/commit/" in found["url"]
    assert {"README.md", "tacit.json", "tacit.safetensors"} < set(found["pushed"])
    assert found["fetched"] == ["tacit.json", "tacit.safetensors"]  # and no code
