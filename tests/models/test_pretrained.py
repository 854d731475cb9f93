import sys

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from tacit.models import ResNet18, ViT, load_weights


def imagenet_like(**changes):
    torch.manual_seed(1)
    return ResNet18(1000, stem="imagenet", norm="batch", width=8, **changes)


@pytest.mark.parametrize("ending", [".safetensors", ".pth"])
def test_the_papers_network_starts_from_imagenet_weights(ending, tmp_path):
    theirs = imagenet_like().state_dict()
    path = tmp_path / f"weights{ending}"
    save_file(theirs, path) if ending == ".safetensors" else torch.save(theirs, path)
    net = ResNet18(10, width=8, pretrained=path)
    for name, tensor in net.state_dict().items():
        if name not in ("conv1.weight", "fc.weight", "fc.bias"):
            assert_close(tensor, theirs[name])
    assert net.loaded.kept == ("conv1.weight", "fc.weight", "fc.bias")
    assert "layer1.0.bn1.running_mean" in net.loaded.unused
    assert len(net.loaded.loaded) == 59
    assert str(net.loaded).startswith("59 tensors loaded; left as they were: conv1.weight, fc.w")


def test_matching_networks_load_everything(tmp_path):
    theirs = imagenet_like()
    torch.save(theirs.state_dict(), tmp_path / "weights.pth")
    net = imagenet_like(pretrained=tmp_path / "weights.pth")
    assert net.loaded.kept == net.loaded.unused == ()
    x = torch.randn(2, 3, 64, 64)
    assert_close(net.eval()(x), theirs.eval()(x))


def test_skipped_layers_are_unchanged():
    net, theirs = imagenet_like(), imagenet_like().state_dict()
    before = net.state_dict()["fc.weight"].clone()
    theirs = {name: tensor + 1 for name, tensor in theirs.items()}
    found = load_weights(net, theirs, skip=["fc"])
    assert found.kept == ("fc.weight", "fc.bias")
    assert torch.equal(net.fc.weight, before)
    assert torch.equal(net.conv1.weight, theirs["conv1.weight"])


def test_older_files_have_no_counters():
    net, theirs = imagenet_like(), imagenet_like().state_dict()
    older = {name: t + 1 for name, t in theirs.items() if "num_batches" not in name}
    found = load_weights(net, older)
    assert len(found.kept) == 20
    assert all(name.endswith("num_batches_tracked") for name in found.kept)
    assert torch.equal(net.bn1.running_mean, older["bn1.running_mean"])


class TestNeverSilentlyPartial:
    def check(self, change, match, **arguments):
        net, weights = imagenet_like(), imagenet_like().state_dict()
        before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
        weights = {name: tensor + 1 for name, tensor in weights.items()}
        change(weights)
        with pytest.raises(ValueError, match=match):
            load_weights(net, weights, **arguments)
        for name, tensor in net.state_dict().items():
            assert torch.equal(tensor, before[name])

    def test_missing(self):
        self.check(lambda w: w.pop("layer1.0.conv1.weight"), r"layer1.0.conv1.weight is missing")

    def test_unexpected(self):
        self.check(
            lambda w: w.update({"extra.weight": torch.zeros(1)}),
            "extra.weight is not in the network",
        )

    def test_another_shape(self):
        self.check(
            lambda w: w.update({"fc.bias": torch.zeros(3)}),
            r"fc.bias is \(1000,\) in the network and \(3,\) in the weights",
        )

    def test_a_missing_statistic_of_batch_norm(self):
        self.check(lambda w: w.pop("bn1.running_mean"), "bn1.running_mean is missing")

    def test_many(self):
        self.check(lambda w: w.clear(), r"is missing; .* \(and 97 more\)")

    def test_skipping_an_unknown_layer(self):
        self.check(lambda w: None, "no layer head. It consists of conv1, .* fc", skip=["head"])


def test_missing_and_damaged_files(tmp_path):
    with pytest.raises(FileNotFoundError, match="weights: there is no file"):
        ResNet18(pretrained=tmp_path / "none.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match="is not a state dict"):
        ResNet18(pretrained=tmp_path / "list.pth")
    for name in ("damaged.pth", "damaged.safetensors"):
        (tmp_path / name).write_bytes(b"not weights")
        with pytest.raises(ValueError, match=f"{name} can't be read"):
            ResNet18(pretrained=tmp_path / name)


def test_without_torchvision(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with pytest.raises(ModuleNotFoundError, match="needs torchvision .*pretrained='resnet18.pth'"):
        ResNet18(pretrained="imagenet")


def test_a_vit_from_a_file(tmp_path):
    torch.save(ViT(7, width=16, depth=1, heads=2).state_dict(), tmp_path / "vit.pth")
    net = ViT(10, width=16, depth=1, heads=2, pretrained=tmp_path / "vit.pth")
    assert net.loaded.kept == ("heads.head.weight", "heads.head.bias")
    with pytest.raises(FileNotFoundError, match="there is no file imagenet"):
        ViT(pretrained="imagenet")


def test_a_vit_that_torchvision_has(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    monkeypatch.setitem(sys.modules, "torchvision", None)
    with (
        pytest.raises(ModuleNotFoundError, match="pretrained='vit_b_16.pth'"),
        torch.device("meta"),
    ):
        ViT(1000, size=224, patch=16, width=768, depth=12, heads=12, pretrained="imagenet")
