"""Random adapters of Hugging Face's models, beside PEFT's."""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from tacit.weights.adapter import adapted_layers

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")
peft = pytest.importorskip("peft")

from test_hugging_face import CONFIG, LABELS, WORDS, bert, trainer  # noqa: E402

pytestmark = pytest.mark.xdist_group("hugging face")

LINEAR = ["query", "key", "value", "dense"]


def gpt2(kind=transformers.GPT2ForSequenceClassification, **changes):
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_embd=16, n_layer=2, n_head=2, n_positions=16, num_labels=3,
        pad_token_id=0, eos_token_id=0, bos_token_id=0, use_cache=False, **changes,
    )  # fmt: skip
    return kind(config)


def adapted(net, moved=True, **settings):
    model = tacit.variational(net, tacit.adapters(2, **settings), likelihood=tacit.Categorical())
    if moved:
        for _, adapter in adapted_layers(model):
            torch.nn.init.normal_(adapter.up.weight, std=0.1)
    return model


def heads(model):
    names = (n for n, value in model.module.named_parameters() if value.requires_grad)
    return [name for name in names if ".adapter." not in name]


def test_the_head_is_what_is_outside_the_base_model():
    assert heads(adapted(bert())) == ["classifier.weight", "classifier.bias"]
    small = {name: value for name, value in CONFIG.items() if name != "num_labels"}
    roberta = transformers.RobertaForSequenceClassification(
        transformers.RobertaConfig(**{**small, "max_position_embeddings": 20, "pad_token_id": 0})
    )
    names = [f"classifier.{n}.{t}" for n in ("dense", "out_proj") for t in ("weight", "bias")]
    assert heads(adapted(roberta)) == names
    assert heads(adapted(gpt2())) == ["score.weight"]
    encoder = bert().bert
    assert heads(adapted(encoder)) == []  # a base model has none


def test_language_models_have_neither_head_nor_adapter_at_the_words():
    for tied in (True, False):
        model = adapted(gpt2(transformers.GPT2LMHeadModel, tie_word_embeddings=tied))
        assert heads(model) == []
        assert not any("lm_head" in layer.label for layer in model.layers)
        assert len(dict(adapted_layers(model))) == 8


@pytest.mark.parametrize("make", [bert, gpt2])
def test_merged_means_have_the_same_outputs_and_samples_run(make):
    net = make()
    words = WORDS.clamp(min=1)
    before = net.eval()(words).logits
    assert torch.equal(adapted(net, moved=False).eval()(words).logits, before)
    model = adapted(make()).eval()
    plain = tacit.deterministic(model)
    assert type(plain) is type(net)
    assert plain.state_dict().keys() == make().state_dict().keys()
    assert_close(plain(words).logits, model(words).logits, atol=1e-5, rtol=1e-4)
    assert model(words, samples=3).logits.shape == (3, 24, 3)
    model.train()
    assert model(words).logits.shape == (24, 3)
    assert model.call_notes[-1].startswith("draws of each example in train mode run in activation")


def test_without_noise_it_is_the_lora_of_peft():
    ours = adapted(bert()).eval()
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, lora_alpha=16, target_modules=LINEAR)
    theirs = peft.get_peft_model(bert(), config).eval()
    names = {name for name, part in theirs.named_modules() if hasattr(part, "lora_A")}
    for name, layer in ours.module.named_modules():
        if (adapter := getattr(layer, "adapter", None)) is None:
            continue
        other = theirs.get_submodule(f"base_model.model.{name}")
        names.remove(f"base_model.model.{name}")
        other.lora_A["default"].weight.data = adapter.down.weight.data.clone()
        other.lora_B["default"].weight.data = adapter.up.weight.data.clone()
    assert not names
    assert_close(ours(WORDS).logits, theirs(WORDS).logits, atol=1e-5, rtol=1e-4)


def test_the_trainer_trains_and_resumes(tmp_path):
    whole, parts = adapted(bert(), moved=False), adapted(bert(), moved=False)
    parts.load_state_dict(whole.state_dict())
    before = copy.deepcopy(whole.state_dict())
    trainer(whole, tmp_path, save_strategy="steps", save_steps=2).train()
    run = trainer(parts, tmp_path, save_strategy="steps", save_steps=2)
    run.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
    for name, value in whole.state_dict().items():
        assert torch.equal(parts.state_dict()[name], value), name
        trained = "adapter" in name or "classifier" in name
        assert torch.equal(value, before[name]) is not trained, name


def test_gradient_checkpointing_gives_the_same_gradients(tmp_path):
    one, other = adapted(bert()), adapted(bert())
    other.load_state_dict(one.state_dict())
    trainer(one, tmp_path, max_steps=2, gradient_checkpointing=True).train()
    trainer(other, tmp_path, max_steps=2).train()
    for name, value in one.state_dict().items():
        assert_close(other.state_dict()[name], value, atol=1e-5, rtol=1e-4, msg=name)


def test_a_file_needs_the_pretrained_model(tmp_path):
    model = adapted(bert()).eval()
    path = tacit.save(model, tmp_path / "adapters.safetensors")
    loaded = tacit.load(path, bert())
    assert torch.equal(loaded(WORDS).logits, model(WORDS).logits)
    assert (
        path.stat().st_size < tacit.save(tacit.variational(bert()), tmp_path / "b").stat().st_size
    )


def test_the_mean_is_exported(tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model = adapted(bert()).eval()
    expected = model(WORDS).logits
    plain = tacit.deterministic(model)
    program = torch.export.export(plain, (WORDS,))
    assert_close(program.module()(WORDS).logits, expected, atol=1e-5, rtol=1e-4)
    path = tmp_path / "mean.onnx"
    torch.onnx.export(
        plain, (WORDS,), path, dynamo=True, verbose=False, input_names=["input_ids"],
        output_names=["logits"],
    )  # fmt: skip
    session = onnxruntime.InferenceSession(path)
    (logits,) = session.run(None, {"input_ids": WORDS.numpy()})
    assert_close(torch.from_numpy(logits), expected, atol=1e-4, rtol=1e-3)


def test_fit_predict_and_the_loss_of_the_model():
    model = adapted(bert(), moved=False)
    data = ({"input_ids": WORDS}, LABELS)
    history = tacit.fit(model, data, epochs=8, lr=0.01, optimizer="adamw", progress=False)
    assert history["loss"][-1] < history["loss"][0]
    prediction = tacit.predict(model, {"input_ids": WORDS}, samples=4)
    assert prediction.mutual_information.min() >= 0
    model.eval()
    found = model(input_ids=WORDS, labels=LABELS)
    assert_close(found.loss, F.cross_entropy(found.logits, LABELS))


def test_a_model_under_peft_needs_no_recipe():
    config = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules=LINEAR)
    model = peft.get_peft_model(bert(), config)
    with pytest.raises(ValueError, match="the module is under adapters of PEFT. Leave out"):
        tacit.variational(model, tacit.adapters(2))
    random = tacit.variational(model)
    trained = {n for n, value in model.named_parameters() if value.requires_grad}
    assert {n for layer in random.layers for n in layer.parameters.values()} == trained
