"""Conformance suites: what every structure and every method must do, for ours and for yours."""

from tacit.testing.covariance import CovarianceSuite
from tacit.testing.methods import MethodSuite

__all__ = ["CovarianceSuite", "MethodSuite"]
