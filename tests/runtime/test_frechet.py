"""The Frechet distance against closed forms, where covariances are singular, and on equal sets."""

import math

import pytest
import torch
from torch import Tensor

from runtime import frechet
from runtime.frechet import frechet_terms
from runtime.moments import Gaussian, Moments


def gaussian(mean: Tensor, covariance: Tensor) -> Gaussian:
    return Gaussian(mean.double(), covariance.double(), None)


def random_rotation(dim: int) -> Tensor:
    return torch.linalg.qr(torch.randn(dim, dim, dtype=torch.float64)).Q


def distance(a: Gaussian, b: Gaussian) -> float:
    return frechet_terms(a, b).distance


def test_commuting_covariances_have_a_closed_form() -> None:
    """|m_a - m_b|^2 + sum (s_a - s_b)^2 of the spreads along the common axes."""
    axes, spread_a, spread_b = random_rotation(8), *(torch.rand(2, 8).double() + 0.1)
    a = gaussian(torch.randn(8), axes @ torch.diag(spread_a**2) @ axes.T)
    b = gaussian(torch.randn(8), axes @ torch.diag(spread_b**2) @ axes.T)
    expected = (a.mean - b.mean).square().sum() + (spread_a - spread_b).square().sum()
    assert distance(a, b) == pytest.approx(float(expected), rel=1e-9)


def test_covariances_that_do_not_commute() -> None:
    """In two dimensions tr (C_a C_b)^(1/2) = sqrt(tr(C_a C_b) + 2 sqrt(det(C_a C_b)))."""
    a = gaussian(torch.zeros(2), torch.tensor([[2.0, 0.7], [0.7, 1.0]]))
    b = gaussian(torch.ones(2), torch.tensor([[0.5, -0.3], [-0.3, 3.0]]))
    product = a.covariance @ b.covariance
    root = math.sqrt(product.trace() + 2 * math.sqrt(torch.linalg.det(product)))
    expected = 2 + float(a.covariance.trace() + b.covariance.trace()) - 2 * root
    assert distance(a, b) == pytest.approx(expected, rel=1e-12)
    assert distance(b, a) == pytest.approx(expected, rel=1e-12)


def test_samples_of_known_gaussians_give_the_known_distance() -> None:
    """A covariance taken over the wrong axis would be far off."""
    n, axes = 50_000, random_rotation(4)
    spread_a, spread_b = torch.tensor([1.0, 2.0, 0.5, 1.0]), torch.tensor([2.0, 1.0, 0.5, 3.0])
    shift = torch.tensor([1.0, 0.0, -2.0, 0.5])
    a = Moments.of((torch.randn(n, 4) * spread_a).double() @ axes.T).gaussian()
    b = Moments.of((torch.randn(n, 4) * spread_b + shift).double() @ axes.T).gaussian()
    expected = float(shift.square().sum() + (spread_a - spread_b).square().sum())
    assert distance(a, b) == pytest.approx(expected, rel=0.03)


def test_a_common_offset_leaves_the_distance() -> None:
    x, y = torch.randn(3000, 16).double(), torch.randn(2000, 16).double() * 1.2 + 0.1
    near = distance(Moments.of(x).gaussian(), Moments.of(y).gaussian())
    far = distance(Moments.of(x + 1e4).gaussian(), Moments.of(y + 1e4).gaussian())
    assert far == pytest.approx(near, rel=1e-7)


def test_distance_goes_with_the_square_of_the_scale() -> None:
    """Small features are no round-off."""
    x, y = torch.randn(300, 6).double(), torch.randn(200, 6).double() * 1.3
    unit = distance(Moments.of(x).gaussian(), Moments.of(y).gaussian())
    small = distance(Moments.of(x * 1e-6).gaussian(), Moments.of(y * 1e-6).gaussian())
    assert small == pytest.approx(1e-12 * unit, rel=1e-9)


def test_fewer_images_than_dimensions() -> None:
    """Singular covariances against the same distance within the space that the images span."""
    x, y = torch.randn(10, 12).double(), torch.randn(8, 12).double() * 1.5
    embedding = torch.linalg.qr(torch.randn(40, 12).double()).Q  # 40 dimensions hold the same 12
    small = distance(Moments.of(x).gaussian(), Moments.of(y).gaussian())
    large = distance(Moments.of(x @ embedding.T).gaussian(), Moments.of(y @ embedding.T).gaussian())
    assert large == pytest.approx(small, rel=1e-9)


@pytest.mark.parametrize("num_images", [8, 3000])
def test_identical_sets_are_at_distance_zero(num_images: int) -> None:
    a = Moments.of(torch.rand(num_images, 32)).gaussian()
    assert distance(a, a) == pytest.approx(0.0, abs=1e-6)


def test_constant_features() -> None:
    a = Moments.of(torch.full((5, 3), 2.0)).gaussian()
    b = Moments.of(torch.full((5, 3), 4.0)).gaussian()
    assert distance(a, b) == pytest.approx(12.0)


def test_other_dimensions_do_not_compare() -> None:
    a, b = Moments.of(torch.rand(9, 3)).gaussian(), Moments.of(torch.rand(9, 4)).gaussian()
    with pytest.raises(ValueError, match="3 and of 4 dimensions"):
        frechet_terms(a, b)


def test_formulas_that_disagree_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    right = frechet._trace_sqrt_by_eigenvalues
    monkeypatch.setattr(frechet, "_trace_sqrt_by_eigenvalues", lambda f, c: 1.01 * right(f, c))
    with pytest.raises(ArithmeticError, match="disagree"):
        frechet_terms(
            Moments.of(torch.rand(99, 3)).gaussian(), Moments.of(torch.rand(99, 3)).gaussian()
        )


def test_a_distance_that_is_not_a_number_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frechet, "_trace_sqrt_by_eigenvalues", lambda f, c: float("nan"))
    with pytest.raises(ArithmeticError):
        frechet_terms(
            Moments.of(torch.rand(99, 3)).gaussian(), Moments.of(torch.rand(99, 3)).gaussian()
        )
