"""With the exact prediction for a known Gaussian, every sampler draws that Gaussian.

The exact prediction is affine in x_t, so a sample is affine in the noises that went into it. Noises
with sample mean 0, sample variance 1 and no sample correlation therefore show a sampler's own mean
and spread, without the chance of a random draw.
"""

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from exact_gaussian import ExactGaussian
from torch import Tensor

from sit.diffusion_coefficients import DIFFUSION_COEFFICIENTS
from sit.flow import FlowConfig, FlowSamplerConfig, InterpolantFlow
from sit.integrators import ODE_METHODS, SDE_METHODS
from sit.last_steps import LAST_STEPS
from sit.paths import PATHS

SHAPE = (1, 4, 16, 16)
MEAN, STD = 0.4, 0.5
PREDICTIONS = ("velocity", "noise", "score")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
Moments = tuple[float, float]  # errors: of the mean, and of the spread relative to itself

pytestmark = pytest.mark.usefixtures("unchecked_shapes")

every_dtype = pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
every_path = pytest.mark.parametrize("path", PATHS)
every_prediction = pytest.mark.parametrize("prediction", PREDICTIONS)


@every_dtype
@every_path
@every_prediction
def test_four_steps_stay_finite(path: str, prediction: str, dtype: torch.dtype) -> None:
    for method in ODE_METHODS:
        errors_of(draw(path, prediction, dtype, method=method, num_sampling_steps=4))
    for method, diffusion, last_step in product(SDE_METHODS, DIFFUSION_COEFFICIENTS, LAST_STEPS):
        choice = {"method": method, "diffusion": diffusion, "last_step": last_step}
        errors_of(draw(path, prediction, dtype, num_sampling_steps=4, **choice))


@every_dtype
@every_path
@every_prediction
def test_the_ode_gives_the_gaussian(path: str, prediction: str, dtype: torch.dtype) -> None:
    for method in ODE_METHODS:
        coarse, fine = (
            errors_of(draw(path, prediction, dtype, method=method, num_sampling_steps=n))
            for n in (50, 250)
        )
        check(coarse, fine, method)
    adaptive = errors_of(draw(path, prediction, dtype, method="dopri5"))
    check(adaptive, adaptive, "dopri5")


@every_path
@pytest.mark.parametrize("diffusion", DIFFUSION_COEFFICIENTS)
def test_the_sde_gives_the_gaussian(path: str, diffusion: str) -> None:
    coarse, fine = (
        stochastic_errors(path, "velocity", torch.float32, "euler_maruyama", diffusion, n)
        for n in (50, 250)
    )
    for last_step in LAST_STEPS:
        check(coarse[last_step], fine[last_step], last_step)


@pytest.mark.slow
@every_dtype
@every_path
@every_prediction
@pytest.mark.parametrize("method", SDE_METHODS)
def test_every_sde_gives_the_gaussian(
    path: str, prediction: str, method: str, dtype: torch.dtype
) -> None:
    for diffusion in DIFFUSION_COEFFICIENTS:
        coarse, fine = (
            stochastic_errors(path, prediction, dtype, method, diffusion, n) for n in (50, 250)
        )
        for last_step in LAST_STEPS:
            check(coarse[last_step], fine[last_step], (diffusion, last_step))


def check(coarse: Moments, fine: Moments, which: Any) -> None:
    """``coarse``: errors at 50 steps, ``fine``: at 250."""
    assert fine[0] < 0.02, which
    assert fine[1] < 0.03, which
    assert fine[1] < coarse[1] + 0.01, which


def stochastic_errors(
    path: str, prediction: str, dtype: torch.dtype, method: str, diffusion: str, num_steps: int
) -> dict[str, Moments]:
    """The errors with each last step; those that are steps share what comes before them."""
    choice = {"method": method, "diffusion": diffusion, "num_sampling_steps": num_steps}
    without = draw(path, prediction, dtype, last_step="none", **choice)
    *before, _ = draw(path, prediction, dtype, last_step="mean", **choice)
    times = a_flow(path, prediction, last_step="mean", **choice).sampler.times
    rest = {"num_sampling_steps": 1, "interval": (times[-1].item(), 1.0)}
    errors = {"none": errors_of(without)}
    for last_step in set(LAST_STEPS) - {"none"}:
        flow = a_flow(path, prediction, last_step=last_step, **choice | rest)
        start = before[-1].to(dtype)
        network, y = ExactGaussian(path, prediction, MEAN, STD), torch.zeros(1, dtype=torch.long)
        errors[last_step] = errors_of(list(flow.states(network, start, y, no_noise)))
    return errors


def errors_of(states: list[Tensor]) -> Moments:
    sample = states[-1].double()
    assert sample.isfinite().all()
    return abs(sample.mean().item() - MEAN), abs(sample.std(correction=0).item() / STD - 1)


def draw(path: str, prediction: str, dtype: torch.dtype, **sampler: Any) -> list[Tensor]:
    start, *noises = uncorrelated_noises().to(dtype)
    y = torch.zeros(1, dtype=torch.long)
    network = ExactGaussian(path, prediction, MEAN, STD)
    flow = a_flow(path, prediction, **sampler)
    return list(flow.states(network, start, y, lambda i: noises[i]))


def a_flow(path: str, prediction: str, **sampler: Any) -> InterpolantFlow:
    return InterpolantFlow(FlowConfig(path, prediction), FlowSamplerConfig(**sampler))


@cache
def uncorrelated_noises() -> Tensor:
    """A start and 250 step noises."""
    num_elements = torch.Size(SHAPE).numel()
    random = torch.randn(num_elements, 252, generator=torch.Generator().manual_seed(1))
    random[:, 0] = 1  # the others become orthogonal to it: their mean is 0
    noises = torch.linalg.qr(random.double()).Q[:, 1:] * num_elements**0.5
    return noises.T.reshape(251, *SHAPE).float()


def no_noise(i: int) -> Tensor:
    raise AssertionError("a last step asked for noise")
