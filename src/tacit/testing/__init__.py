"""Conformance suites for covariance structures and methods, the library's and your own."""

from tacit.testing.covariance import CovarianceSuite
from tacit.testing.methods import MethodSuite

__all__ = ["CovarianceSuite", "MethodSuite"]
