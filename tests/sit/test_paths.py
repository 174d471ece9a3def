"""The laws of interpolant paths."""

import pytest
import torch
from torch import Tensor

from sit.paths import PATHS, Path

DTYPES = (torch.float32, torch.float64)

every_path = pytest.mark.parametrize("path", PATHS.values(), ids=PATHS)


def times(dtype: torch.dtype = torch.float64) -> Tensor:
    inside = torch.linspace(0.0, 1.0, 101, dtype=dtype)
    near_ends = torch.tensor([1e-6, 1e-4, 1e-3, 1 - 1e-3, 1 - 1e-4, 1 - 1e-6], dtype=dtype)
    return torch.cat([inside, near_ends]).sort().values


@every_path
@pytest.mark.parametrize("name", ["alpha", "sigma"])
def test_derivatives_are_those_of_autograd(path: Path, name: str) -> None:
    t = times()[1:-1].requires_grad_()
    (expected,) = torch.autograd.grad(getattr(path, name)(t).sum(), t)
    torch.testing.assert_close(getattr(path, "d" + name)(t), expected, rtol=1e-9, atol=1e-12)


@every_path
@pytest.mark.parametrize("dtype", DTYPES)
def test_noise_fades_out_and_data_fade_in(path: Path, dtype: torch.dtype) -> None:
    alpha, sigma = path.alpha(times(dtype)), path.sigma(times(dtype))
    assert (alpha.diff() >= 0).all() and (sigma.diff() <= 0).all()
    assert alpha[0] < 0.01 and alpha[-1] == 1
    assert sigma[0] == pytest.approx(1, abs=1e-4) and sigma[-1] == 0


@every_path
def test_float32_is_precise_up_to_the_ends(path: Path) -> None:
    t = times(torch.float32)
    for name in ("alpha", "sigma", "dalpha", "dsigma"):
        ours, exact = (getattr(path, name)(t.to(dtype)) for dtype in DTYPES)
        torch.testing.assert_close(ours.double(), exact, rtol=1e-5, atol=1e-7)


@every_path
def test_a_point_holds_the_four_functions(path: Path) -> None:
    t = times()
    here = path.at(t)
    for name in ("alpha", "sigma", "dalpha", "dsigma"):
        assert torch.equal(getattr(here, name), getattr(path, name)(t))


@every_path
def test_score_coefficient_is_the_general_form(path: Path) -> None:
    """g = (alpha' / alpha) sigma^2 - sigma sigma'."""
    t = times()[1:-1]
    here = path.at(t)
    general = here.dalpha / here.alpha * here.sigma.square() - here.sigma * here.dsigma
    torch.testing.assert_close(path.score_coefficient(t), general)


@every_path
def test_usable_interval_is_as_wide_as_it_can_be(path: Path) -> None:
    """An end is left by the margin, exactly where something is not finite there."""
    ends = path.at(torch.tensor([0.0, 1.0]))
    for divides_by_alpha in (False, True):
        for divides_by_sigma in (False, True):
            start, end = path.usable_interval(0.01, divides_by_alpha, divides_by_sigma)
            leaves_start = divides_by_alpha and ends.alpha[0] == 0
            leaves_end = (divides_by_sigma and ends.sigma[1] == 0) or ends.dsigma[1].isinf()
            assert start == (0.01 if leaves_start else 0.0)
            assert end == (0.99 if leaves_end else 1.0)
