"""Hugging Face's Trainer and PEFT take a wrapped model as they take the model itself."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from nets import mlp

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")

from transformers import Trainer, TrainingArguments  # noqa: E402

pytestmark = pytest.mark.xdist_group("hugging face")

CONFIG = {
    "vocab_size": 20, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "num_labels": 3, "max_position_embeddings": 16,
}  # fmt: skip
WORDS = torch.randint(20, (24, 6), generator=torch.Generator().manual_seed(0))
LABELS = WORDS[:, 0] % 3
DATA = [
    {"input_ids": words, "labels": label, "unused": 0}
    for words, label in zip(WORDS, LABELS, strict=True)
]


def bert(**changes):
    torch.manual_seed(0)
    return transformers.BertForSequenceClassification(transformers.BertConfig(**CONFIG, **changes))


def wrapped(where=None, **changes):
    return tacit.variational(bert(**changes), where, likelihood=tacit.Categorical())


def trainer(model, folder, optimizers=(None, None), **settings):
    given = {"save_strategy": "no", "max_steps": 4, "learning_rate": 0.01, **settings}
    arguments = TrainingArguments(
        output_dir=str(folder), per_device_train_batch_size=8, use_cpu=True, report_to="none",
        disable_tqdm=True, logging_steps=1, dataloader_pin_memory=False, **given,
    )  # fmt: skip
    return Trainer(
        model=model, args=arguments, train_dataset=DATA, eval_dataset=DATA, optimizers=optimizers,
        compute_metrics=accuracy,
    )  # fmt: skip


def accuracy(found):
    return {"accuracy": (found.predictions.argmax(-1) == found.label_ids).mean()}


def test_the_trainer_trains_evaluates_and_predicts_without_special_flags(tmp_path):
    model = wrapped()
    before = copy.deepcopy(model.state_dict())
    run = trainer(model, tmp_path)
    assert run.label_names == ["labels"]
    run.train()
    moved = {n for n, value in model.state_dict().items() if not torch.equal(value, before[n])}
    assert {"module.classifier.weight", "factors.classifier.weight"} <= moved
    assert model.call_notes == ["draws of each example in train mode run in activation space"]
    scores, predicted = run.evaluate(), run.predict(DATA)
    model.eval()
    logits = model(input_ids=WORDS).logits.detach()  # of the mean, in eval mode
    assert scores["eval_loss"] == pytest.approx(F.cross_entropy(logits, LABELS).item(), rel=1e-4)
    assert scores["eval_accuracy"] == (logits.argmax(-1) == LABELS).float().mean()
    assert_close(torch.from_numpy(predicted.predictions), logits, atol=1e-5, rtol=1e-4)


def test_the_loss_in_train_mode_estimates_the_expected_loss():
    model = wrapped(
        {"classifier": tacit.Relative(0.8)}, hidden_dropout_prob=0.0, initializer_range=0.5,
        attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    with torch.no_grad():
        losses = torch.stack([model(input_ids=WORDS, labels=LABELS).loss for _ in range(400)])
        samples = model(input_ids=WORDS, samples=2000).logits
        each = F.cross_entropy(samples.movedim(-1, 1), LABELS.expand(2000, -1), reduction="none")
        mean = F.cross_entropy(model.eval()(input_ids=WORDS).logits, LABELS)
    reference = each.mean(1)
    error = (losses.var() / 400 + reference.var() / 2000).sqrt()
    assert (losses.mean() - reference.mean()).abs() < 4 * error
    assert losses.mean() - mean > 4 * error  # not the loss of the mean weights


def test_a_resumed_run_ends_with_the_same_bits(tmp_path):
    whole, parts = wrapped(), wrapped()
    trainer(whole, tmp_path, save_strategy="steps", save_steps=2).train()
    run = trainer(parts, tmp_path, save_strategy="steps", save_steps=2)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value), name


def test_checkpoints_of_a_model_with_tied_weights(tmp_path):
    def gpt2():
        torch.manual_seed(0)
        config = transformers.GPT2Config(
            vocab_size=20, n_embd=16, n_layer=1, n_head=2, n_positions=16, use_cache=False
        )
        return tacit.variational(transformers.GPT2LMHeadModel(config))

    def run(model, folder):
        made = trainer(model, folder, save_strategy="steps", save_steps=2)
        made.train_dataset = [{"input_ids": words, "labels": words} for words in WORDS]
        return made

    whole, parts = gpt2(), gpt2()
    run(whole, tmp_path).train()
    run(parts, tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    assert parts.module.lm_head.weight is parts.module.transformer.wte.weight
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value), name


def test_gradient_accumulation_and_checkpointing(tmp_path):
    model, plain = wrapped(), wrapped()
    run = trainer(
        model, tmp_path, max_steps=2, gradient_accumulation_steps=2, gradient_checkpointing=True
    )
    run.train()
    assert model.is_gradient_checkpointing
    trainer(plain, tmp_path, max_steps=2, gradient_accumulation_steps=2).train()
    for name, value in plain.state_dict().items():  # recomputed with the same noise
        assert_close(model.state_dict()[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_learning_rates_of_the_factors_by_an_optimizer_of_ones_own(tmp_path):
    model = wrapped()
    optimizer = torch.optim.AdamW(model.param_groups(0.01, "adamw"))
    run = trainer(model, tmp_path, optimizers=(optimizer, None))
    run.train()
    rates = {group["name"]: group["initial_lr"] for group in run.optimizer.param_groups}
    assert rates == pytest.approx({"means x1": 0.01, "factors x0.01": 1e-4})


def test_predictions_and_files_of_a_wrapped_model(tmp_path):
    model = wrapped()
    prediction = tacit.predict(model, {"input_ids": WORDS}, samples=4)
    assert prediction.probs.shape == (24, 3)
    data = [{"input_ids": each["input_ids"], "labels": each["labels"]} for each in DATA]
    tacit.calibrate(model, torch.utils.data.DataLoader(data, 8), samples=4)
    assert model.likelihood.temperature != 1
    tacit.save(model, tmp_path / "model.safetensors")
    loaded = tacit.load(tmp_path / "model.safetensors", bert())
    assert_close(loaded(WORDS).logits, model.eval()(WORDS).logits)


def adapted(task_type="SEQ_CLS"):
    config = peft.LoraConfig(task_type=task_type, r=2, target_modules=["query", "value"])
    return peft.get_peft_model(bert(), config)


def test_peft_without_a_task_has_the_signature_of_the_model_under_it(tmp_path):
    model = tacit.variational(adapted(task_type=None))
    assert trainer(model, tmp_path).label_names == ["labels"]
    assert model(input_ids=WORDS, labels=LABELS).loss.ndim == 0


def test_of_a_model_under_peft_adapters_and_head_are_random_and_trained(tmp_path):
    model = tacit.variational(adapted(), likelihood=tacit.Categorical())
    random = {name for layer in model.layers for name in layer.parameters.values()}
    trained = {n for n, value in model.module.named_parameters() if value.requires_grad}
    assert random == trained
    assert any("lora_A" in name for name in random)
    before = copy.deepcopy(model.state_dict())
    trainer(model, tmp_path, save_strategy="steps", save_steps=2).train()
    after = model.state_dict()
    moved = {n.removeprefix("module.") for n in after if not torch.equal(after[n], before[n])}
    assert {name for name in moved if not name.startswith("factors.")} == trained
    assert any(name.startswith("factors.") for name in moved)


def test_peft_adapts_any_module_for_fit():
    net = mlp(4, 8, 8, 3)
    first, second, head = (
        name for name, part in net.named_modules() if hasattr(part, "in_features")
    )
    config = peft.LoraConfig(r=2, target_modules=[second], modules_to_save=[head])
    model = tacit.variational(peft.get_peft_model(net, config), likelihood=tacit.Categorical())
    labels = [layer.label for layer in model.layers]
    assert labels == [
        f"base_model.model.{second}.lora_A.default",
        f"base_model.model.{second}.lora_B.default",
        f"base_model.model.{head}.modules_to_save.default",
    ]
    x = torch.randn(64, 4)
    frozen = net.get_submodule(first).weight.clone()
    history = tacit.fit(model, (x, (x[:, 0] > 0).long()), epochs=10, lr=0.1, progress=False)
    assert history["loss"][-1] < history["loss"][0]
    assert torch.equal(net.get_submodule(first).weight, frozen)


def test_merged_means_are_a_plain_model():
    model = tacit.variational(adapted())
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.eval()
    merged = tacit.deterministic(model).merge_and_unload()
    assert type(merged) is transformers.BertForSequenceClassification
    assert_close(merged(WORDS).logits, model(WORDS).logits, atol=1e-5, rtol=1e-4)
    networks = tacit.ensemble(model, 3)
    assert networks(WORDS).logits.shape == (3, 24, 3)


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["adapters"]], ids=["default", "adapters"])
def test_two_processes_of_accelerate_stay_synchronised_with_noise_of_their_own(
    tmp_path, unused_port, options
):
    worker = str(Path(__file__).parent / "trainer_worker.py")
    launcher = ["-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={unused_port}"]
    done = subprocess.run(
        [sys.executable, *launcher, worker, str(tmp_path), *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    for name, value in first["state"].items():
        assert torch.equal(value, second["state"][name]), name
    assert first["loss"] == second["loss"]
    assert not torch.equal(first["noise"], second["noise"])
