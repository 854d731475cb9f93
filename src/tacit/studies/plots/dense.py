"""Plots of predictions for every pixel."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from tacit._support.figures import saved
from tacit.likelihood.predictive import ClassPredictive
from tacit.metrics.arguments import Values, as_tensor
from tacit.studies.plots.arguments import check_kind, check_shape


def plot_uncertainty_map(
    image: Values,
    prediction: ClassPredictive,
    labels: Values | None = None,
    path: str | Path | None = None,
) -> Any:
    """Show an image, the predicted class of each pixel and the entropy of the predictions.

    Args:
        image: The image, (H, W) or (C, H, W) with 1 or 3 channels, from 0 to 1 or 0 to 255.
        prediction: Predictions for its pixels: one example with (H, W) labels, `predictions[i]`.
        labels: True classes of the pixels (H, W), shown next to the predicted ones, if known.
        path: File to write, if any.

    Returns:
        The figure, a `matplotlib.figure.Figure`.

    Raises:
        TypeError: If these are not class predictions.
        ValueError: If the shapes of image, predictions and labels differ.

    Examples:
        >>> import tacit, torch
        >>> net, image = torch.nn.Conv2d(3, 4, 3, padding=1), torch.rand(3, 16, 16)
        >>> prediction = tacit.predict(net, image[None], likelihood=tacit.Categorical(class_dim=1))
        >>> figure = plot_uncertainty_map(image, prediction)
        >>> [axis.get_title() for axis in figure.axes if axis.get_title()]
        ['image', 'predicted class', 'entropy, nats']
    """
    from matplotlib.figure import Figure

    check_kind("plot_uncertainty_map", prediction, ClassPredictive)
    if prediction.entropy.ndim != 3 or len(prediction) != 1:
        raise ValueError(
            "plot_uncertainty_map: expected predictions for the pixels of one image, (1, H, W), "
            f"received {tuple(prediction.entropy.shape)}; select one with predictions[i]."
        )
    sizes = tuple(prediction.entropy.shape[1:])
    picture = as_tensor("plot_uncertainty_map(image)", image).detach().cpu()
    if picture.ndim == 3 and picture.shape[0] in (1, 3):
        picture = picture.movedim(0, -1).squeeze(-1)
    if tuple(picture.shape) not in (sizes, (*sizes, 3)):
        raise ValueError(
            f"plot_uncertainty_map(image): expected shape {sizes}, or 1 or 3 channels first, "
            f"received {tuple(as_tensor('image', image).shape)}."
        )
    classes = prediction.logits.shape[-1]
    maps = {"predicted class": prediction.label[0].cpu()}
    if labels is not None:
        truth = as_tensor("plot_uncertainty_map(labels)", labels).cpu()
        check_shape("plot_uncertainty_map(labels)", truth, sizes)
        maps["true class"] = truth
    figure = Figure(figsize=(3 * (2 + len(maps)) + 0.6, 3.2), layout="constrained")
    first, *middle, last = figure.subplots(1, 2 + len(maps), squeeze=False)[0]
    first.imshow(picture.numpy(), cmap="gray" if picture.ndim == 2 else None)
    first.set_title("image")
    for axis, (title, values) in zip(middle, maps.items(), strict=True):
        axis.imshow(
            values.numpy(), cmap="tab20", vmin=0, vmax=max(19, classes - 1), interpolation="nearest"
        )
        axis.set_title(title)
    entropy = prediction.entropy[0].detach().float().cpu().numpy()
    shown = last.imshow(entropy, cmap="magma", vmin=0, vmax=math.log(classes))
    last.set_title("entropy, nats")
    figure.colorbar(shown, ax=last)
    for axis in (first, *middle, last):
        axis.set(xticks=[], yticks=[])
    return saved(figure, path)
