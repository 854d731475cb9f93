"""The mean network and ensembles run in ONNX Runtime, for any batch size."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

import tacit
from nets import cnn, mlp
from tacit.models.standardise import Standardise

onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

pytestmark = pytest.mark.xdist_group("onnx")


def standardised():
    model = tacit.variational(mlp(4, 8, 3))
    model.inputs = Standardise.of(3 + 2 * torch.randn(20, 4))
    return model


MODELS = {
    "table": (standardised, (4,)),
    "images": (lambda: tacit.variational(cnn(nn.BatchNorm2d)), (1, 8, 8)),
    "every layer": (lambda: tacit.variational(mlp(4, 8, 3), rank=2), (4,)),
    "attention": (
        lambda: tacit.variational(tacit.models.ViT(4, size=8, width=16, depth=1, heads=2)),
        (3, 8, 8),
    ),
}


def session(network, x, path):
    batch = {0: torch.export.Dim("batch")}
    torch.onnx.export(network, (x,), path, dynamo=True, dynamic_shapes=(batch,), verbose=False)
    return onnxruntime.InferenceSession(path)


@pytest.mark.parametrize("convert", [tacit.deterministic, lambda m: tacit.ensemble(m, 3)])
@pytest.mark.parametrize("name", MODELS)
def test_onnx_runtime_gives_the_outputs_of_torch_for_any_batch_size(name, convert, tmp_path):
    make, shape = MODELS[name]
    network = convert(make().eval()).eval()
    run = session(network, torch.randn(6, *shape), tmp_path / "network.onnx")
    (only,) = run.get_inputs()
    assert only.shape[0] == "batch"
    for size in (1, 2, 17):
        x = torch.randn(size, *shape)
        (found,) = run.run(None, {only.name: x.numpy()})
        assert_close(torch.from_numpy(found), network(x).detach(), atol=1e-5, rtol=1e-4)


def test_the_input_has_the_name_that_the_network_gives_it(tmp_path):
    networks = tacit.ensemble(tacit.variational(tacit.models.LeNet5()).eval(), 2)
    run = session(networks, torch.randn(2, 1, 28, 28), tmp_path / "network.onnx")
    assert [each.name for each in run.get_inputs()] == ["input"]  # of nn.Sequential


class Logits(nn.Module):
    """The output of a Hugging Face model as a tensor."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, input_ids, attention_mask):
        return self.network(input_ids=input_ids, attention_mask=attention_mask).logits


@pytest.mark.filterwarnings("ignore:.*The axis name. batch will not be used")
def test_an_ensemble_of_hugging_face_models(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=3,
    )  # fmt: skip
    model = tacit.variational(transformers.BertForSequenceClassification(config)).eval()
    network = Logits(tacit.ensemble(model, 2)).eval()

    def inputs(size):
        words = torch.randint(20, (size, 6))
        return words, (words > 3).long()

    batch, path = {0: torch.export.Dim("batch")}, tmp_path / "bert.onnx"
    torch.onnx.export(
        network, inputs(4), path, dynamo=True, dynamic_shapes=(batch, batch), verbose=False
    )
    run = onnxruntime.InferenceSession(path)
    for size in (1, 7):
        words, mask = inputs(size)
        given = {"input_ids": words.numpy(), "attention_mask": mask.numpy()}
        (found,) = run.run(None, given)
        assert_close(torch.from_numpy(found), network(words, mask).detach(), atol=1e-5, rtol=1e-4)
