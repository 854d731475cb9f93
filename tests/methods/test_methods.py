from tacit.methods import (
    SWAG,
    DeepEnsemble,
    GeneralizedVI,
    ImplicitBiasVI,
    Laplace,
    MCDropout,
    MeanFieldVI,
    Standard,
    TemperatureScaling,
)
from tacit.testing import MethodSuite


class TestStandard(MethodSuite):
    def method(self):
        return Standard()


class TestTemperatureScaling(MethodSuite):
    post_hoc, regression = True, False

    def method(self):
        return TemperatureScaling()


class TestLaplaceGrid(MethodSuite):
    def method(self):
        return Laplace()


class TestLaplaceMarginalLikelihood(MethodSuite):
    def method(self):
        return Laplace("marglik")


class TestLaplaceSamples(MethodSuite):
    def method(self):
        return Laplace(predictive="samples")


class TestMeanFieldVI(MethodSuite):
    def method(self):
        return MeanFieldVI()


class TestSWAG(MethodSuite):
    def method(self):
        return SWAG(samples=8)


class TestMCDropout(MethodSuite):
    def method(self):
        return MCDropout(0.05)


class TestDeepEnsemble(MethodSuite):
    def method(self):
        return DeepEnsemble(3)


class TestImplicitBiasVI(MethodSuite):
    def method(self):
        return ImplicitBiasVI(["2"], rank=4, draws=5)


class TestGeneralizedVI(MethodSuite):
    def method(self):
        return GeneralizedVI(1.0, ["2"], rank=4, draws=5)
