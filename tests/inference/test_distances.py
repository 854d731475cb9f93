"""Distances from the training data, in the features of a layer."""

import numpy as np
import pytest
import torch
from scipy.spatial.distance import mahalanobis
from several_inputs import TwoInputs
from sklearn.covariance import oas
from torch import nn
from torch.testing import assert_close

import tacit
from tacit.inference import FeatureDistance, feature_distance
from tacit.methods.learned import Members, Plain, Sampled

GENERATOR = torch.Generator().manual_seed(0)
SHAPE = torch.tensor([[2.0, 0.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.5, 0.3]]).double()


def clusters(size=300, classes=3, offset=0.0):
    """Gaussian classes in three dimensions with one covariance, and their labels."""
    labels = torch.arange(size) % classes
    noise = torch.randn(size, 3, generator=GENERATOR, dtype=torch.float64)
    return noise @ SHAPE.T + 5 * labels[:, None].double() + offset, labels


def identity():
    """A network whose features, the inputs of its last layer, are its inputs."""
    return nn.Sequential(nn.Identity(), nn.Linear(3, 3)).double()


def by_definition(x, labels, new):
    """The smallest distance to a class mean, by NumPy, SciPy and scikit-learn."""
    x, labels, new = x.numpy(), labels.numpy(), new.numpy()
    means = np.stack([x[labels == label].mean(0) for label in np.unique(labels)])
    centred = x - means[np.searchsorted(np.unique(labels), labels)]
    covariance, shrinkage = oas(centred, assume_centered=True)
    precision = np.linalg.inv(covariance)
    distances = [min(mahalanobis(f, mean, precision) for mean in means) for f in new]
    return torch.tensor(distances), shrinkage


@pytest.mark.parametrize("batch_size", [1, 7, 1000])
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_distances_match_their_definition(batch_size, offset):
    x, labels = clusters(60, offset=offset)
    new = x[:9] + torch.randn(9, 3, generator=GENERATOR, dtype=torch.float64)
    expected, shrinkage = by_definition(x, labels, new)
    found = feature_distance(identity(), (x, labels), batch_size=batch_size)
    assert_close(found(new, batch_size=4), expected, rtol=1e-6, atol=1e-8)
    assert found.shrinkage == pytest.approx(shrinkage, rel=1e-6)
    assert found.means.shape == (3, 3)


def test_the_known_answer_for_many_gaussian_examples():
    x, labels = clusters(60_000)
    found = feature_distance(identity(), (x, labels))
    assert_close(found.covariance, SHAPE @ SHAPE.T, atol=0.05, rtol=0)
    distances = found(x).square()
    # Nearly the chi-squared distribution with three degrees of freedom, whose mean is 3: the
    # nearest mean is that of the own class for all but a few.
    assert 2.7 < distances.mean().item() < 3.05
    mean = torch.full((1, 3), 5.0, dtype=torch.float64)
    assert found(mean).item() < 0.05


def test_a_regression_has_a_single_mean():
    x, labels = clusters(60)
    one = torch.zeros_like(labels)
    expected, _ = by_definition(x, one, x)
    for targets in (x.sum(1), torch.stack([labels, labels], 1)):
        found = feature_distance(identity(), (x, targets))
        assert found.means.shape == (1, 3)
        assert_close(found(x), expected)
    continuous = tacit.variational(identity(), likelihood=tacit.Gaussian())
    assert_close(feature_distance(continuous, (x, labels))(x), expected)


def test_labels_need_not_be_consecutive():
    x, labels = clusters(60)
    found = feature_distance(identity(), (x, 100 * labels[:, None] + 7))
    assert_close(found(x), feature_distance(identity(), (x, labels))(x))


def test_fewer_examples_than_features():
    torch.manual_seed(0)
    x = torch.randn(10, 50, dtype=torch.float64)
    net = nn.Linear(50, 2).double()
    found = feature_distance(net, (x, torch.arange(10) % 2))
    assert 0 < found.shrinkage <= 1
    assert found(x).isfinite().all()
    assert repr(found) == "FeatureDistance(input of '', features=50, means=2)"


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.relu = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.drop(self.relu(self.conv(x)).mean((2, 3))))


def test_convolutions_are_averaged_over_positions_before_changes_in_place():
    torch.manual_seed(0)
    net, x, labels = (
        Convolutions().double(),
        torch.randn(40, 1, 6, 6).double(),
        torch.arange(40) % 3,
    )
    features = net.conv(x).mean((2, 3)).detach()
    expected, _ = by_definition(features, labels, features)
    assert_close(feature_distance(net, (x, labels), "conv")(x), expected)
    features = net.conv(x).relu().mean((2, 3)).detach()
    expected, _ = by_definition(features, labels, features)
    assert_close(feature_distance(net, (x, labels))(x), expected)  # in eval mode: no dropout
    assert_close(feature_distance(net, (x, labels), "drop")(x), expected)


@pytest.mark.parametrize(
    ("net", "shape", "dims"),
    [
        (nn.Conv1d(3, 4, 1), (20, 3, 5), 2),
        (nn.Linear(3, 4), (20, 5, 3), 1),
        (nn.Sequential(nn.Linear(3, 4)), (20, 5, 3), 1),
        (nn.Linear(3, 4), (20, 5, 2, 3), (1, 2)),
        (nn.Flatten(0), (20,), None),
    ],
    ids=["conv1d", "linear", "tokens", "grid", "scalars"],
)
def test_positions_by_layer(net, shape, dims):
    torch.manual_seed(0)
    net, x = net.double(), torch.randn(shape, dtype=torch.float64)
    outputs = net(x).detach()
    features = outputs[:, None] if dims is None else outputs.mean(dims)
    expected, _ = by_definition(features, torch.zeros(20), features)
    assert_close(feature_distance(net, (x, torch.zeros(20)), "")(x), expected)


def test_models_and_predictors_use_their_mean_weights():
    x, labels = clusters(60)
    net, likelihood = identity(), tacit.Categorical()
    model = tacit.variational(net, {"1": tacit.LowRank(2)}, likelihood=likelihood)
    expected = feature_distance(net, (x, labels), "1")(x)
    for each in (model, Plain(net, likelihood), Sampled(model)):
        assert_close(feature_distance(each, (x, labels), "1")(x), expected, rtol=0, atol=0)
    with pytest.raises(TypeError, match="model: Members has no single network with features"):
        feature_distance(Members([net, net], likelihood), (x, labels))


def test_modes_and_hooks_are_restored():
    x, labels = clusters(30)
    net = identity()
    net[0].eval()
    modes = [module.training for module in net.modules()]
    feature_distance(net, (x, labels))(x)
    with pytest.raises(ValueError, match="target"):
        feature_distance(net, (x, labels[:5]))
    with pytest.raises(ValueError, match="expected 3 columns, received 2"):
        feature_distance(net, (x[:, :2], labels))
    assert [module.training for module in net.modules()] == modes
    assert not any(module._forward_hooks for module in net.modules())
    assert torch.is_grad_enabled()


def test_several_inputs():
    torch.manual_seed(0)
    a, b, labels = torch.randn(30, 4), torch.randn(30, 4), torch.arange(30) % 3
    net = TwoInputs()
    found = feature_distance(net, ((a, b), labels), "first")
    expected, _ = by_definition(net.first(a).detach().double(), labels, net.first(a).detach())
    assert_close(found({"a": a, "b": b}), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="output is that of one linear layer.*: first, second"):
        feature_distance(net, ((a, b), labels))  # a sum of two


def test_a_squeezed_output_is_that_of_the_last_layer():
    class Squeezed(nn.Sequential):
        def forward(self, x):
            return super().forward(x).squeeze(-1)

    x, _ = clusters(30)
    net = Squeezed(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)).double()
    assert feature_distance(net, (x, x.sum(1))).layer == "2"


def test_bad_layers_are_refused():
    x, labels = clusters(30)
    with pytest.raises(ValueError, match="layer: there is no layer 'fc'. Layers: 0, 1."):
        feature_distance(identity(), (x, labels), "fc")
    twice = nn.Linear(3, 3).double()
    with pytest.raises(ValueError, match="layer: '0' is called 2 times in a forward pass"):
        feature_distance(nn.Sequential(twice, twice), (x, labels), "0")
    with pytest.raises(ValueError, match="one linear layer, called once"):
        feature_distance(nn.Sequential(twice, twice), (x, labels))
    recurrent = nn.LSTM(3, 4).double()
    with pytest.raises(ValueError, match="expected tensors with a batch at '', received tuple"):
        feature_distance(recurrent, (x, labels), "")
    with pytest.raises(ValueError, match="don't vary within classes"):
        feature_distance(identity(), (5 + 0 * x, labels))
    flat = nn.Sequential(nn.Flatten(0), nn.Unflatten(0, (-1, 1)), nn.Linear(1, 1)).double()
    with pytest.raises(ValueError, match="features of 30 examples .* at '2', received 90"):
        feature_distance(flat, (x, labels))
    wide = nn.Linear(2**14 + 1, 1)
    with pytest.raises(ValueError, match="16385 features, whose covariance would take 2 GB"):
        feature_distance(wide, (torch.zeros(2, 2**14 + 1), torch.zeros(2)))


class TestDetection:
    def evaluated(self, **settings):
        x, labels = clusters(300)
        torch.manual_seed(0)
        model = tacit.variational(identity(), rank=2, likelihood=tacit.Categorical())
        distance = feature_distance(model, (x, labels))
        data = {"foreign": x - 40, "distance": distance, **settings}
        return tacit.evaluate(model, (x, labels), batch_size=50, **data), distance

    def test_distances_are_scores(self):
        found, distance = self.evaluated()
        assert isinstance(distance, FeatureDistance)
        assert found["ood_auroc_distance"] == found["ood_aupr_distance"] == 1
        assert found["ood_fpr95_distance"] == 0

    def test_several_distances_by_name(self):
        _, distance = self.evaluated()
        found, _ = self.evaluated(distance={"last": distance, "other": distance})
        assert found["ood_auroc_last"] == found["ood_auroc_other"] == 1

    def test_bad_distances_are_refused(self):
        _, distance = self.evaluated()
        with pytest.raises(TypeError, match="distance: expected distances from .*, received float"):
            self.evaluated(distance=1.0)
        with pytest.raises(ValueError, match="'energy' is a score of the predictions; rename it"):
            self.evaluated(distance={"energy": distance})
        with pytest.raises(ValueError, match="distance: pass foreign= as well"):
            self.evaluated(foreign=None)
