"""The numbers are read back from the figures."""

import numpy as np
import pytest
import torch

from tacit import plots
from tacit.likelihood.predictive import ClassPredictive


def pixels():
    generator = torch.Generator().manual_seed(0)
    return ClassPredictive(torch.randn(4, 2, 5, 6, 3, generator=generator))


@pytest.mark.parametrize("shape", [(5, 6), (1, 5, 6), (3, 5, 6)])
def test_maps_show_image_classes_and_entropy(shape, tmp_path):
    prediction, image, truth = pixels()[1], torch.rand(shape), torch.randint(3, (5, 6))
    figure = plots.plot_uncertainty_map(image, prediction, truth, tmp_path / "map.png")
    shown = [np.asarray(axis.images[0].get_array()) for axis in figure.axes[:4]]
    expected = image.movedim(0, -1).squeeze(-1) if image.ndim == 3 else image
    np.testing.assert_allclose(shown[0], expected)
    np.testing.assert_array_equal(shown[1], prediction.label[0])
    np.testing.assert_array_equal(shown[2], truth)
    np.testing.assert_allclose(shown[3], prediction.entropy[0])
    assert figure.axes[3].images[0].get_clim() == pytest.approx((0, np.log(3)))
    assert len(plots.plot_uncertainty_map(image, prediction).axes) == 4  # one is the colour bar


def test_other_than_the_pixels_of_an_image_is_refused():
    prediction, image = pixels(), torch.rand(5, 6)
    with pytest.raises(ValueError, match=r"one image, \(1, H, W\), received \(2, 5, 6\)"):
        plots.plot_uncertainty_map(image, prediction)
    with pytest.raises(ValueError, match=r"\(image\): expected shape \(5, 6\), .* \(6, 5\)"):
        plots.plot_uncertainty_map(image.T, prediction[0])
    with pytest.raises(ValueError, match=r"\(labels\): expected shape \(5, 6\), received \(30,\)"):
        plots.plot_uncertainty_map(image, prediction[0], torch.zeros(30))
    with pytest.raises(TypeError, match="plot_uncertainty_map: expected class predictions"):
        plots.plot_uncertainty_map(image, image)
