"""Velocity, score, noise and data are one statement, and conversions keep it."""

from itertools import permutations

import pytest
import torch
from exact_gaussian import ExactGaussian
from torch import Tensor

from sit.conversions import UNMIX, FlowField, convert
from sit.diffusion_coefficients import DIFFUSION_COEFFICIENTS, diffusion_coefficient
from sit.paths import PATHS

every_path = pytest.mark.parametrize("path", PATHS)


def times() -> Tensor:
    return torch.tensor([0.001, 0.1, 0.5, 0.9, 0.999], dtype=torch.float64)


def images() -> Tensor:
    return torch.randn(5, 2, 3, 4, dtype=torch.float64)


@every_path
@pytest.mark.parametrize(("source", "target"), permutations(UNMIX, 2))
def test_conversions_are_inverse(path: str, source: str, target: str) -> None:
    here, x_t, predicted = PATHS[path].at(times()[:, None, None, None]), images(), images()
    there = convert(here, predicted, source, target, x_t)
    torch.testing.assert_close(convert(here, there, target, source, x_t), predicted)


@every_path
@pytest.mark.parametrize("source", UNMIX)
def test_a_true_prediction_gives_everything_that_was_mixed(path: str, source: str) -> None:
    here, x, noise = PATHS[path].at(times()[:, None, None, None]), images(), images()
    x_t = here.alpha * x + here.sigma * noise
    truth = {
        "velocity": here.dalpha * x + here.dsigma * noise,
        "score": -noise / here.sigma,
        "noise": noise,
        "data": x,
    }
    for target, expected in truth.items():
        torch.testing.assert_close(convert(here, truth[source], source, target, x_t), expected)


@every_path
@pytest.mark.parametrize(("source", "target"), permutations(UNMIX, 2))
def test_expectations_convert_like_samples(path: str, source: str, target: str) -> None:
    """The exact predictions for Gaussian data are each other's conversions."""
    x_t, t, y = images(), times(), torch.zeros(5, dtype=torch.long)
    field = FlowField(ExactGaussian(path, source), PATHS[path], source, torch.float64)
    expected = ExactGaussian(path, target)(x_t, t, y)
    torch.testing.assert_close(field(x_t, t, y).read_as(target), expected)


@every_path
def test_score_is_the_gradient_of_the_log_density(path: str) -> None:
    """Through autograd, with the velocity as the network's prediction."""
    network = ExactGaussian(path, "velocity")
    x_t, t, y = images().requires_grad_(), times(), torch.zeros(5, dtype=torch.long)
    here = PATHS[path].at(t[:, None, None, None])
    variance = here.alpha.square() * network.std**2 + here.sigma.square()
    log_density = -((x_t - here.alpha * network.mean).square() / (2 * variance)).sum()
    (score,) = torch.autograd.grad(log_density, x_t)
    field = FlowField(network, PATHS[path], "velocity", torch.float64)
    torch.testing.assert_close(field(x_t.detach(), t, y).read_as("score"), score)


def test_the_network_sees_its_own_dtype_and_a_precise_time() -> None:
    seen = {}

    def network(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        seen.update(x_t=x_t.dtype, t=t.dtype, time=t[0].item())
        return x_t

    field = FlowField(network, PATHS["linear"], "velocity", torch.bfloat16)
    t, y = torch.full((5,), 0.999), torch.zeros(5, dtype=torch.long)
    prediction = field(images().float(), t, y)
    assert seen["x_t"] == torch.bfloat16
    assert seen["t"] == torch.float32 and seen["time"] == pytest.approx(0.999)  # 1.0 in bfloat16
    assert prediction.read_as("score").dtype == torch.float32


def test_a_network_with_a_variance_half_is_refused() -> None:
    def network(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x_t, x_t], dim=1)

    field = FlowField(network, PATHS["linear"], "velocity", torch.float64)
    with pytest.raises(ValueError, match="2 channels, not 4"):
        field(images(), times(), torch.zeros(5, dtype=torch.long))


@every_path
@pytest.mark.parametrize("name", DIFFUSION_COEFFICIENTS)
@pytest.mark.parametrize("norm", [0.0, 0.5, 1.0, 2.0])
def test_diffusion_is_never_negative(path: str, name: str, norm: float) -> None:
    t = torch.linspace(0.001, 1.0, 100)
    diffusion = diffusion_coefficient(name, PATHS[path], t, norm)
    assert diffusion.isfinite().all() and (diffusion >= 0).all()


@every_path
def test_sbdm_diffusion_undoes_the_velocitys_score(path: str) -> None:
    """velocity = (alpha' / alpha) x_t + D score: backward in time, noise replaces the score."""
    x_t, t = images(), times()[:, None, None, None]
    here, score = PATHS[path].at(t), images()
    velocity = convert(here, score, "score", "velocity", x_t)
    diffusion = diffusion_coefficient("sbdm", PATHS[path], t, 1.0)
    torch.testing.assert_close(velocity - diffusion * score, here.dalpha / here.alpha * x_t)


def test_an_unknown_diffusion_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match="increasing_decreasing"):
        diffusion_coefficient("inccreasing", PATHS["linear"], torch.zeros(1), 1.0)
