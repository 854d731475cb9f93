"""Conformance suites for covariances, likelihoods and methods, the library's and your own."""

from tacit.testing.covariance import CovarianceSuite
from tacit.testing.likelihoods import LikelihoodSuite
from tacit.testing.methods import MethodSuite

__all__ = ["CovarianceSuite", "LikelihoodSuite", "MethodSuite"]
