"""Conformance suites: what every structure must do, for ours and for yours."""

from tacit.testing.covariance import CovarianceSuite

__all__ = ["CovarianceSuite"]
