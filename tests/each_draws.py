"""Models and inputs for tests of draws for each example."""

import torch

import tacit
from tacit import Relative

X = torch.linspace(-1, 1, 40).reshape(10, 4)
ONES = torch.ones(10, 4)


def relative(net, covariance=None, **kwargs):
    return tacit.variational(net, {"*": covariance or Relative(0.5)}, **kwargs)


def distinct(output):
    """Return the number of different rows."""
    return len({tuple(row.flatten().tolist()) for row in output})
