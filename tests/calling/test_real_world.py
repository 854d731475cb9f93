"""Common architectures: each trains, samples, and agrees with one call per sample."""

import copy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import Tied, TwoInputs, cnn, mlp
from tacit import LowRank
from tacit._support.trees import tensors_in

SEQUENCE = torch.randn(4, 6, 16, generator=torch.Generator().manual_seed(0))
IMAGES = torch.randn(4, 1, 8, 8, generator=torch.Generator().manual_seed(0))
WORDS = torch.arange(28).reshape(4, 7)


def encoder():
    layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def bert():
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, num_labels=3,
    )  # fmt: skip
    return transformers.BertForSequenceClassification(config)


def gpt2():
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=16,
        bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    return transformers.GPT2LMHeadModel(config)


CASES = {
    "mlp": (lambda: mlp(16, 8, 3), (SEQUENCE,), {}),
    "cnn with batch norm": (lambda: cnn(nn.BatchNorm2d), (IMAGES,), {}),
    "cnn with group norm": (lambda: cnn(lambda c: nn.GroupNorm(2, c)), (IMAGES,), {}),
    "transposed convolution": (lambda: nn.ConvTranspose2d(1, 3, 3), (IMAGES,), {}),
    "transformer encoder": (encoder, (SEQUENCE,), {}),
    "attention": (lambda: nn.MultiheadAttention(16, 4, batch_first=True), (SEQUENCE,) * 3, {}),
    "lstm": (lambda: nn.LSTM(16, 5, 2, batch_first=True), (SEQUENCE,), {}),
    "gru": (lambda: nn.GRU(16, 5, batch_first=True), (SEQUENCE,), {}),
    "embedding": (lambda: nn.Embedding(28, 4), (WORDS,), {}),
    "tied embedding": (lambda: Tied(words=28), (WORDS,), {}),
    "two inputs": (TwoInputs, (SEQUENCE[:, 0, :3],), {"context": SEQUENCE[:, 1, :2]}),
    "bert": (bert, (), {"input_ids": WORDS, "attention_mask": torch.ones_like(WORDS)}),
    "gpt2": (gpt2, (), {"input_ids": WORDS, "use_cache": False}),
}


@pytest.fixture(params=CASES)
def case(request):
    make, args, kwargs = CASES[request.param]
    return tacit.variational(make(), {"*": LowRank(2)}), args, kwargs


@pytest.fixture
def name(request):
    return request.node.callspec.params["case"]


def loss_of(output):
    return sum(tensor.square().mean() for tensor in tensors_in(output))


def test_a_training_step_reaches_every_parameter(case, name):
    model, args, kwargs = case
    optimizer = torch.optim.SGD(model.param_groups(lr=0.1), momentum=0.9)
    before = copy.deepcopy(model.state_dict())
    loss_of(model(*args, **kwargs)).backward()
    optimizer.step()
    still = [name for name, value in model.named_parameters() if torch.equal(before[name], value)]
    # Some parameters have no influence on the output: a bias before batch norm, the bias of keys.
    without_influence = {"cnn with batch norm": "0.bias", "bert": "key.bias"}.get(name, "none")
    assert [key for key in still if not key.endswith(without_influence)] == []


def test_eval_mode_equals_the_wrapped_module(case):
    model, args, kwargs = case
    model.eval()
    for ours, theirs in zip(
        tensors_in(model(*args, **kwargs)), tensors_in(model.module(*args, **kwargs)), strict=True
    ):
        assert torch.equal(ours, theirs)


def test_samples_agree_with_one_call_per_sample(case):
    model, args, kwargs = case
    model.eval()
    weights = model.sample(3)
    together = tensors_in(model(*args, weights=weights, **kwargs))
    for m in range(3):
        one = {name: tensor[m] for name, tensor in weights.items()}
        for stacked, single in zip(
            together, tensors_in(model(*args, weights=one, **kwargs)), strict=True
        ):
            assert_close(stacked[m], single, atol=1e-5, rtol=1e-4)


def test_gradients_of_samples_agree_with_one_call_per_sample(case):
    model, args, kwargs = case
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        model.eval()

    def gradients(*losses):
        model.zero_grad()
        for loss in losses:
            loss.backward(retain_graph=True)
        return [p.grad.clone() for p in model.parameters() if p.grad is not None]

    weights = model.sample(2)
    ours = gradients(2 * loss_of(model(*args, weights=weights, **kwargs)))
    singles = ({name: tensor[m] for name, tensor in weights.items()} for m in range(2))
    theirs = gradients(*[loss_of(model(*args, weights=one, **kwargs)) for one in singles])
    for a, b in zip(ours, theirs, strict=True):
        assert_close(a, b, atol=1e-5, rtol=1e-3)


def test_hugging_face_outputs_keep_their_class():
    model = tacit.variational(bert())
    output = model(input_ids=WORDS, samples=5)
    assert type(output).__name__ == "SequenceClassifierOutput"
    assert output.logits.shape == (5, 4, 3)
    assert model(input_ids=WORDS, draws=3).logits.shape == (4, 3)


def test_a_hugging_face_loss_cannot_be_split_into_groups():
    model = tacit.variational(bert())
    labels = torch.zeros(4, dtype=torch.long)
    assert model(input_ids=WORDS, labels=labels, samples=5).loss.shape == (5,)
    with pytest.raises(ValueError, match=r"draws: expected outputs .* returned the shape \(\)"):
        model(input_ids=WORDS, labels=labels, draws=2)
