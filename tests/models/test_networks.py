import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import tacit
from tacit.models import MLP, LeNet5, ResNet18, ResNet34, ResNet50, ViT

IMAGENET = {"stem": "imagenet", "norm": "batch"}
VIT_B_16 = {"size": 224, "patch": 16, "width": 768, "depth": 12, "heads": 12}


def count(net):
    return sum(parameter.numel() for parameter in net.parameters())


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # Published with torchvision's weights.
        (lambda: ResNet18(1000, **IMAGENET), 11_689_512),
        (lambda: ResNet34(1000, **IMAGENET), 21_797_672),
        (lambda: ResNet50(1000, **IMAGENET), 25_557_032),
        (lambda: ViT(1000, **VIT_B_16), 86_567_656),
        # LeNet-5 with all connections, counted by hand: 156 + 2416 + 48120 + 10164 + 850.
        (lambda: LeNet5(), 61_706),
        (lambda: MLP(784, [512, 512], 10), 669_706),
        (lambda: MLP(784, [], 10), 7_850),
    ],
)
def test_parameter_counts(make, expected):
    with torch.device("meta"):
        assert count(make()) == expected


def test_slices_of_a_network():
    net, x = LeNet5(), torch.randn(2, 1, 28, 28)
    assert torch.equal(net[-1](net[:-1](x)), net(x))


def test_group_norm_has_as_many_parameters_as_batch_norm():
    assert count(ResNet18(norm="group")) == count(ResNet18(norm="batch"))


def hugging_face_resnet(basic, depths, width=8):
    from transformers import ResNetConfig, ResNetForImageClassification

    expansion = 1 if basic else 4
    config = ResNetConfig(
        embedding_size=width,
        hidden_sizes=[expansion * width * 2**i for i in range(4)],
        depths=depths,
        layer_type="basic" if basic else "bottleneck",
        num_labels=7,
    )
    return ResNetForImageClassification(config)


def from_hugging_face(name):
    parts = name.split(".")
    last = parts[-1]
    if "embedder" in parts:
        return f"conv1.{last}" if "convolution" in parts else f"bn1.{last}"
    if "classifier" in parts:
        return f"fc.{last}"
    stage, block = int(parts[3]) + 1, parts[5]
    if "shortcut" in parts:
        return f"layer{stage}.{block}.downsample.{0 if 'convolution' in parts else 1}.{last}"
    kind = "conv" if "convolution" in parts else "bn"
    return f"layer{stage}.{block}.{kind}{int(parts[7]) + 1}.{last}"


@pytest.mark.parametrize(
    ("network", "basic"), [(ResNet18, True), (ResNet34, True), (ResNet50, False)]
)
@pytest.mark.parametrize("mode", ["train", "eval"])
def test_resnets_against_another_implementation(network, basic, mode):
    other = hugging_face_resnet(basic, list(network.depths)).double()
    for module in other.modules():  # statistics that differ from their initial values
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
    net = network(7, width=8, **IMAGENET).double()
    weights = {from_hugging_face(name): t for name, t in other.state_dict().items()}
    assert tacit.models.load_weights(net, weights).unused == ()
    x = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    other.train(mode == "train")
    net.train(mode == "train")
    assert_close(net(x), other(x).logits)


def test_a_vit_against_another_implementation():
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        image_size=16, patch_size=4, num_labels=5, layer_norm_eps=1e-6,
    )  # fmt: skip
    other = ViTForImageClassification(config).double().eval()
    theirs = {
        name: tensor + 0.1 * torch.randn_like(tensor) for name, tensor in other.state_dict().items()
    }
    other.load_state_dict(theirs)
    weights = {
        "class_token": theirs["vit.embeddings.cls_token"],
        "encoder.pos_embedding": theirs["vit.embeddings.position_embeddings"],
    }
    for kind in ("weight", "bias"):
        weights[f"conv_proj.{kind}"] = theirs[f"vit.embeddings.patch_embeddings.projection.{kind}"]
        weights[f"encoder.ln.{kind}"] = theirs[f"vit.layernorm.{kind}"]
        weights[f"heads.head.{kind}"] = theirs[f"classifier.{kind}"]
        for i in range(3):
            ours, their = f"encoder.layers.encoder_layer_{i}", f"vit.layers.{i}"
            packed = [theirs[f"{their}.attention.{part}_proj.{kind}"] for part in "qkv"]
            weights[f"{ours}.self_attention.in_proj_{kind}"] = torch.cat(packed)
            for a, b in (
                ("self_attention.out_proj", "attention.o_proj"), ("ln_1", "layernorm_before"),
                ("ln_2", "layernorm_after"), ("mlp.0", "mlp.fc1"), ("mlp.3", "mlp.fc2"),
            ):  # fmt: skip
                weights[f"{ours}.{a}.{kind}"] = theirs[f"{their}.{b}.{kind}"]
    net = ViT(5, size=16, patch=4, width=32, depth=3, heads=4, mlp=64).double().eval()
    tacit.models.load_weights(net, weights)
    x = torch.randn(2, 3, 16, 16, dtype=torch.float64)
    assert_close(net(x), other(x).logits)


@pytest.mark.parametrize("name", ["resnet18", "resnet34", "resnet50"])
def test_resnets_against_torchvision(name):
    try:
        from torchvision import models
    except (ImportError, RuntimeError) as error:
        pytest.skip(f"torchvision doesn't import: {error}")
    theirs = getattr(models, name)().eval()
    net = tacit.models.MODELS[name.replace("resnet", "ResNet")](1000, **IMAGENET).eval()
    tacit.models.load_weights(net, theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    assert_close(net(x), theirs(x))


@pytest.mark.parametrize("network", [ResNet18, ResNet34, ResNet50])
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("size", [32, 64])
def test_small_images_keep_their_size_through_the_stem(network, norm, size):
    net = network(classes=4, channels=1, norm=norm, width=8)
    x = torch.randn(2, 1, size, size)
    assert net.maxpool(net.conv1(x)).shape[-2:] == (size, size)
    assert net(x).shape == (2, 4)


def test_widths_that_32_groups_dont_divide():
    assert ResNet18(width=12)(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


def test_a_variational_resnet():
    ends = tacit.variational(ResNet18(width=8), tacit.first_and_last)
    assert [layer.label for layer in ends.layers] == ["conv1", "fc"]
    model = tacit.variational(ResNet18(width=8), rank=3)
    assert len(model.layers) == 21  # 20 convolutions and the last layer, no norm layers
    model(torch.randn(4, 3, 32, 32), draws=2).sum().backward()
    assert model(torch.randn(4, 3, 32, 32), samples=3).shape == (3, 4, 10)


def test_a_variational_vit():
    ends = tacit.variational(ViT(width=16, depth=1, heads=2), tacit.first_and_last)
    assert [layer.label for layer in ends.layers] == ["conv_proj", "heads.head"]
    model = tacit.variational(ViT(width=16, depth=1, heads=2), rank=3)
    assert len(model.layers) == 6
    assert model(torch.randn(4, 3, 32, 32), samples=3).shape == (3, 4, 10)


@pytest.mark.parametrize(
    "make",
    [
        lambda n: MLP(n(4), [n(8), n(8)], n(3)),
        lambda n: MLP(n(4), np.array([8, 8]), n(3)),
        lambda n: LeNet5(classes=n(3), channels=n(2)),
        lambda n: ResNet18(n(3), n(1), width=n(8)),
        lambda n: ViT(n(3), n(1), size=n(8), patch=n(4), width=n(8), depth=n(1), heads=n(2),
                      mlp=n(8), dropout=np.float32(0.25)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint16])
def test_sizes_may_be_numbers_of_numpy(make, kind):
    net, same = make(kind), make(int)
    assert json.dumps(net.arguments) == json.dumps(same.arguments)
    assert type(net)(**net.arguments).arguments == net.arguments
    assert count(net) == count(same)
    for module in net.modules():
        sizes = [value for value in vars(module).values() if isinstance(value, np.generic)]
        assert sizes == []


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: MLP(4, 8, 3), r"MLP\(hidden\): expected a list of widths, received 8"),
        (lambda: MLP(4, [8.0], 3), r"MLP: expected an integer of at least 1, received 8\.0"),
        (lambda: LeNet5(classes=True), r"LeNet5\(classes\): expected an integer"),
        (lambda: ViT(mlp=1.5), r"mlp: expected an integer of at least 1, received 1\.5"),
        (lambda: ViT(dropout="0.1"), "dropout: expected a number from 0 to 1, received '0.1'"),
        (
            lambda: ResNet18(pretrained=True),
            "pretrained: expected 'imagenet' or a file, received T",
        ),
        (lambda: ViT(pretrained=False), "pretrained: expected 'imagenet' or a file, received Fal"),
    ],
)
def test_arguments_of_the_wrong_type(make, match):
    with pytest.raises(TypeError, match=match):
        make()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: ResNet18(stem="big"), "stem: expected small or imagenet, received 'big'"),
        (lambda: ResNet18(norm="layer"), "norm: expected group or batch, received 'layer'"),
        (lambda: ResNet18(width=0), "width: expected an integer of at least 1"),
        (lambda: ViT(mlp=0), "mlp: expected an integer of at least 1, received 0"),
        (lambda: ViT(dropout=1.5), r"dropout: expected a number from 0 to 1, received 1\.5"),
        (lambda: ViT(size=30), "expected size to be a multiple of patch"),
        (lambda: ViT()(torch.zeros(1, 3, 28, 28)), "expected images of 32 x 32"),
    ],
)
def test_bad_input(make, match):
    with pytest.raises(ValueError, match=match):
        make()
