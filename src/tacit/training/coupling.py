"""Whether a network treats the examples of a batch independently, as several draws require."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tacit._support.trees import map_tensors
from tacit.calling import Variational
from tacit.calling.caller import Inputs
from tacit.calling.draws import batch_size
from tacit.calling.trial import WithoutDropout
from tacit.data.batches import Batch
from tacit.inference.functions import tensor_of
from tacit.training.checkpoints import preserved_random_state

DROPOUTS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip


def examples_in(model: Variational, batch: Batch, like: Tensor) -> int:
    """Return the number of examples of a batch that draws could split; 0 if they can't."""
    try:
        return batch_size(model.module, _inputs(batch, like))
    except ValueError:
        return 0


def coupling(model: Variational, batch: Batch, like: Tensor, draws: int) -> str | None:
    """Return why a batch can't be split into groups with separate draws, or None.

    Compares the outputs for the whole batch with those for its first and last group alone. Runs
    without gradients, with the mean weights and without dropout. Modes, buffers and random states
    are restored.

    Args:
        model: The model.
        batch: A batch of training data, with at least two examples.
        like: A parameter, with the device and dtype of the inputs.
        draws: Number of groups.
    """
    inputs = _inputs(batch, like)
    try:
        size = batch_size(model.module, inputs)
    except ValueError as error:
        return f"a batch can't be split ({str(error).removeprefix('draws: ')})"
    rows, larger = divmod(size, min(draws, size))
    preserved = preserved_random_state(like.device)
    with _restored(model), preserved, torch.no_grad(), WithoutDropout():
        weights, whole = _whole(model, inputs)
        for part in (slice(0, rows + bool(larger)), slice(size - rows, size)):
            try:
                alone = _output(model, weights, _cut(inputs, part))
            except Exception as error:  # networks raise any exception for a wrong size
                return f"the network can't be applied to a part of a batch ({error})"
            if not whole.ndim or len(whole) != size or not _close(whole[part], alone, whole):
                return "the outputs for some examples of a batch depend on the other examples"
    return None


def _inputs(batch: Batch, like: Tensor) -> Inputs:
    with preserved_random_state(like.device):  # images may be augmented
        found: Inputs = batch.call(lambda *args, **kwargs: (args, kwargs), like)
    return found


def _cut(inputs: Inputs, part: slice) -> Inputs:
    cut: Inputs = map_tensors(lambda tensor: tensor[part] if tensor.ndim else tensor, inputs)
    return cut


def _whole(model: Variational, inputs: Inputs) -> tuple[dict[str, Tensor] | None, Tensor]:
    """Return weights (None: the means), and the outputs for the whole batch with them."""
    for layer in model.modules():
        if isinstance(layer, DROPOUTS):
            layer.training = False
    outputs = _output(model, None, inputs)
    if not torch.equal(outputs, _output(model, None, inputs)):
        model.eval()  # the outputs are random, for instance due to dropout in an LSTM
        outputs = _output(model, None, inputs)
    if outputs.ndim and len(outputs) and bool((outputs == outputs[:1]).all()):
        # A zero-initialized layer hides all layers before it; random weights don't.
        weights = model.sample()
        return weights, _output(model, weights, inputs)
    return None, outputs


def _output(model: Variational, weights: dict[str, Tensor] | None, inputs: Inputs) -> Tensor:
    args, kwargs = inputs
    called: Any = (
        model.module(*model.prepared(args), **kwargs)
        if weights is None
        else model(*args, weights=weights, **kwargs)
    )
    return tensor_of(called)


def _close(whole: Tensor, alone: Tensor, scale: Tensor) -> bool:
    """Return whether outputs agree up to rounding, relative to the largest output."""
    if whole.shape != alone.shape:
        return False
    if not whole.is_floating_point():
        return torch.equal(whole, alone)
    largest = scale[scale.isfinite()].abs().amax().item() if scale.isfinite().any() else 0.0
    tolerance = torch.finfo(whole.dtype).eps ** 0.5 * largest
    return torch.allclose(whole, alone, rtol=0.0, atol=tolerance, equal_nan=True)


@contextmanager
def _restored(model: nn.Module) -> Iterator[None]:
    """Restore the modes of all layers and all buffers on exit."""
    modes = {layer: layer.training for layer in model.modules()}
    buffers = [
        (layer, name, buffer, buffer.clone())
        for layer in model.modules()
        for name, buffer in layer.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for layer, training in modes.items():
            layer.training = training
        with torch.no_grad():
            for layer, name, buffer, value in buffers:
                layer._buffers[name] = buffer.copy_(value)
