"""The vision transformer, with torchvision's parameter names and arithmetic."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn

from tacit._support import checks
from tacit.models.base import Rebuildable
from tacit.models.pretrained import Loaded, load_pretrained

# (width, depth, heads) of the models for which torchvision has weights, at 224 x 224.
TORCHVISION = {(768, 12, 12): "vit_b", (1024, 24, 16): "vit_l"}


class ViT(Rebuildable):
    """A vision transformer (Dosovitskiy et al., 2021).

    The defaults are a small model for 32 x 32 images. `ViT(1000, size=224, patch=16, width=768,
    depth=12, heads=12)` is torchvision's vit_b_16 and loads its weights.

    Args:
        classes: Number of outputs.
        channels: Channels of the images.
        size: Height and width of the images.
        patch: Height and width of a patch.
        width: Embedding dimension of a token.
        depth: Number of encoder layers.
        heads: Number of attention heads, a divisor of the width.
        mlp: Hidden width of the MLP in each encoder layer; by default 4 times the width.
        dropout: Dropout probability.
        pretrained: A file of weights, or "imagenet" for torchvision's, if it has this model; it
            must be installed. The first and last layers keep their initialization if their shapes
            differ.

    Examples:
        >>> import torch
        >>> ViT(width=32, depth=2, heads=4)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 10])
    """

    loaded: Loaded | None = None
    """Which tensors came from `pretrained`; None without it."""

    def __init__(
        self,
        classes: int = 10,
        channels: int = 3,
        *,
        size: int = 32,
        patch: int = 4,
        width: int = 192,
        depth: int = 6,
        heads: int = 3,
        mlp: int | None = None,
        dropout: float = 0.0,
        pretrained: str | Path | None = None,
    ) -> None:
        super().__init__()
        classes = checks.positive_integer("classes", classes)
        channels = checks.positive_integer("channels", channels)
        size = checks.positive_integer("size", size)
        patch = checks.positive_integer("patch", patch)
        width = checks.positive_integer("width", width)
        depth = checks.positive_integer("depth", depth)
        heads = checks.positive_integer("heads", heads)
        mlp = None if mlp is None else checks.positive_integer("mlp", mlp)
        dropout = checks.probability("dropout", dropout)
        self.arguments = {
            "classes": classes, "channels": channels, "size": size, "patch": patch, "width": width,
            "depth": depth, "heads": heads, "mlp": mlp, "dropout": dropout,
        }  # fmt: skip
        if size % patch or width % heads:
            raise ValueError(
                "ViT: expected size to be a multiple of patch and width a multiple of heads, "
                f"received size {size}, patch {patch}, width {width} and heads {heads}."
            )
        self.conv_proj = nn.Conv2d(channels, width, patch, stride=patch)
        self.class_token = nn.Parameter(torch.zeros(1, 1, width))
        tokens = (size // patch) ** 2 + 1
        self.encoder = Encoder(tokens, width, depth, heads, mlp or 4 * width, dropout)
        self.heads = nn.Sequential(OrderedDict(head=nn.Linear(width, classes)))
        fan_in = channels * patch**2
        nn.init.trunc_normal_(self.conv_proj.weight, std=fan_in**-0.5)
        nn.init.zeros_(self.conv_proj.bias)  # type: ignore[arg-type]
        if pretrained is not None:
            kind = TORCHVISION.get((width, depth, heads)) if size == 224 and mlp is None else None
            known = None if kind is None else f"{kind}_{patch}"
            self.loaded = load_pretrained(self, pretrained, known, first="conv_proj", last="heads")

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of images, (B, C, H, W) to (B, classes)."""
        size = self.arguments["size"]
        if x.shape[-2:] != (size, size):
            raise ValueError(
                f"ViT: expected images of {size} x {size}, received {tuple(x.shape[-2:])}."
            )
        tokens = self.conv_proj(x).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.class_token.expand(x.shape[0], -1, -1), tokens], dim=1)
        logits: Tensor = self.heads(self.encoder(tokens)[:, 0])
        return logits


class Encoder(nn.Module):
    """Position embeddings, encoder layers and a final layer norm."""

    def __init__(
        self, tokens: int, width: int, depth: int, heads: int, mlp: int, dropout: float
    ) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.zeros(1, tokens, width))
        normal(self.pos_embedding, std=0.02)
        self.dropout = nn.Dropout(dropout)
        self.layers = nn.Sequential(
            OrderedDict(
                (f"encoder_layer_{i}", EncoderLayer(width, heads, mlp, dropout))
                for i in range(depth)
            )
        )
        self.ln = nn.LayerNorm(width, eps=1e-6)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return features of tokens, (B, T, width)."""
        found: Tensor = self.ln(self.layers(self.dropout(tokens + self.pos_embedding)))
        return found


class EncoderLayer(nn.Module):
    """Self-attention and an MLP, each with a layer norm before it and a residual connection."""

    def __init__(self, width: int, heads: int, mlp: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width, eps=1e-6)
        self.self_attention = nn.MultiheadAttention(width, heads, dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.ln_2 = nn.LayerNorm(width, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp), nn.GELU(), nn.Dropout(dropout), nn.Linear(mlp, width),
            nn.Dropout(dropout),
        )  # fmt: skip
        for layer in (self.mlp[0], self.mlp[3]):
            nn.init.xavier_uniform_(layer.weight)  # type: ignore[arg-type]
            normal(layer.bias, std=1e-6)  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        """Return features of tokens, (B, T, width)."""
        normed = self.ln_1(x)
        attended, _ = self.self_attention(normed, normed, normed, need_weights=False)
        x = x + self.dropout(attended)
        found: Tensor = x + self.mlp(self.ln_2(x))
        return found


def normal(tensor: Tensor, *, std: float) -> None:
    """Draw a tensor's entries, except on the meta device, where this imports 800 modules."""
    if not tensor.is_meta:
        nn.init.normal_(tensor, std=std)
