import pytest
import torch

from tacit import noise
from tacit.weights.noise import Noise

FAMILIES = [noise.Gaussian(), noise.Laplace(), noise.StudentT(12.0), noise.StudentT(5)]


@pytest.mark.parametrize("family", FAMILIES, ids=str)
def test_noise_has_mean_zero_and_variance_one(family):
    n = 400_000
    like = torch.zeros(1, dtype=torch.float64)
    z = family.sample((n,), like=like, generator=torch.Generator().manual_seed(3))
    assert z.mean().abs() < 5 / n**0.5
    assert (z.square().mean() - 1).abs() < 5 * z.square().std() / n**0.5


# Fourth moments of the standardised families: 3 + excess kurtosis.
@pytest.mark.parametrize(
    ("family", "kurtosis"),
    [(noise.Gaussian(), 3.0), (noise.Laplace(), 6.0), (noise.StudentT(12.0), 3 + 6 / 8)],
    ids=str,
)
def test_the_fourth_moment_is_that_of_the_family(family, kurtosis):
    n = 1_000_000
    like = torch.zeros(1, dtype=torch.float64)
    fourth = family.sample((n,), like=like, generator=torch.Generator().manual_seed(3)) ** 4
    assert (fourth.mean() - kurtosis).abs() < 5 * fourth.std() / n**0.5


def test_student_t_samples_follow_its_distribution_function():
    # For df = 4 the distribution function is known: F(t) = 1/2 + s (3 - s^2) / 4 with
    # s = t / sqrt(4 + t^2), an integral of (1 + t^2/4)^(-5/2).
    n = 200_000
    like = torch.zeros(1, dtype=torch.float64)
    z = noise.StudentT(4).sample((n,), like=like, generator=torch.Generator().manual_seed(0))
    t = z * 2**0.5  # undo the scaling to variance 1
    for point in (-3.0, -1.0, 0.5, 2.0):
        s = point / (4 + point**2) ** 0.5
        expected = 0.5 + s * (3 - s**2) / 4
        error = (expected * (1 - expected) / n) ** 0.5
        assert abs(float((t <= point).double().mean()) - expected) < 5 * error


@pytest.mark.parametrize("family", FAMILIES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_samples_have_the_given_shape_and_dtype_and_follow_the_generator(family, dtype):
    like = torch.zeros(1, dtype=dtype)
    first, second, other = (
        family.sample((3, 2), like=like, generator=torch.Generator().manual_seed(seed))
        for seed in (0, 0, 1)
    )
    assert first.shape == (3, 2)
    assert first.dtype == dtype
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert first.isfinite().all()


@pytest.mark.parametrize("df", [2, 1.5, -1, float("nan"), float("inf")])
def test_student_t_without_finite_variance_is_refused(df):
    with pytest.raises(ValueError, match=r"StudentT\(df\): expected a number above 2"):
        noise.StudentT(df)


def test_noise_is_abstract():
    with pytest.raises(TypeError, match="abstract"):
        Noise()
