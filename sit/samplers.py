"""The three ways through a flow: an ODE in equal steps, an ODE in chosen steps, an SDE.

Each is built for one path and prediction, knows its times, and turns noise into the states along
the way; the last state is the sample.
"""

from collections.abc import Iterator
from functools import partial
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from process.denoiser import StepNoise
from sit.conversions import FlowField
from sit.diffusion_coefficients import diffusion_coefficient
from sit.dopri5 import DormandPrince
from sit.integrators import ODE_METHODS, SDE_METHODS, per_image, runge_kutta
from sit.intervals import ode_interval, require_finite, sde_interval
from sit.last_steps import LAST_STEPS
from sit.paths import Path
from sit.sampler_config import FlowSamplerConfig

Latents = Float[Tensor, "batch channels height width"]
Labels = Int[Tensor, " batch"]


@runtime_checkable
class Sampler(Protocol):
    def states(
        self, field: FlowField, x_t: Latents, y: Labels, step_noise: StepNoise
    ) -> Iterator[Latents]: ...


def build_sampler(config: FlowSamplerConfig, path: Path, prediction: str) -> Sampler:
    """The sampler of a config whose defaults have been filled in."""
    if config.method == "dopri5":
        return AdaptiveSampler(config, path, prediction)
    if config.method in ODE_METHODS:
        return FixedStepSampler(config, path, prediction)
    return StochasticSampler(config, path, prediction)


class FixedStepSampler:
    """The probability flow by a Runge-Kutta method, in steps of equal length."""

    def __init__(self, config: FlowSamplerConfig, path: Path, prediction: str) -> None:
        assert config.num_sampling_steps is not None
        start, end = _ode_ends(config, path, prediction)
        self.method = ODE_METHODS[config.method]
        self.times = _grid(start, end, config.num_sampling_steps + 1)

    def states(
        self, field: FlowField, x_t: Latents, y: Labels, step_noise: StepNoise
    ) -> Iterator[Latents]:
        return runge_kutta(self.method, partial(_velocity, field), x_t, self.times, y)


class AdaptiveSampler:
    """The probability flow by Dormand-Prince 5(4), each image in steps of its own."""

    def __init__(self, config: FlowSamplerConfig, path: Path, prediction: str) -> None:
        assert config.atol is not None and config.rtol is not None
        self.method = DormandPrince(config.atol, config.rtol)
        self.interval = _ode_ends(config, path, prediction)

    def states(
        self, field: FlowField, x_t: Latents, y: Labels, step_noise: StepNoise
    ) -> Iterator[Latents]:
        return self.method(partial(_velocity, field), x_t, *self.interval, y)


class StochasticSampler:
    """The SDE in steps of equal length, then a last step without noise."""

    def __init__(self, config: FlowSamplerConfig, path: Path, prediction: str) -> None:
        assert config.diffusion is not None and config.diffusion_norm is not None
        assert config.last_step is not None
        self.path = path
        self.method = SDE_METHODS[config.method]
        self.diffusion_name = config.diffusion
        self.diffusion_norm = config.diffusion_norm
        self.last_step = LAST_STEPS[config.last_step]
        self.times, self.last_step_size = stochastic_times(config, path, prediction)
        last_asked = self.times[-1 if _asks_at_end(config) else -2]
        for t in (self.times[0], last_asked):
            require_finite(path, prediction, ("velocity", "score"), config.diffusion, t.item())

    def states(
        self, field: FlowField, x_t: Latents, y: Labels, step_noise: StepNoise
    ) -> Iterator[Latents]:
        state = x_t
        drift = partial(self._drift, field)
        for state in self.method(drift, self._diffusion, x_t, self.times, y, step_noise):
            yield state
        if self.last_step is not None:
            (t,) = per_image(self.times[-1:], state)
            diffusion = self._diffusion(t)[:, None, None, None]
            yield self.last_step(state, field(state, t, y), diffusion, self.last_step_size)

    def _drift(
        self, field: FlowField, x_t: Latents, t: Float[Tensor, " batch"], y: Labels
    ) -> Latents:
        prediction = field(x_t, t, y)  # one network call for both
        diffusion = self._diffusion(t)[:, None, None, None]
        return prediction.read_as("velocity") + diffusion * prediction.read_as("score")

    def _diffusion(self, t: Float[Tensor, " batch"]) -> Float[Tensor, " batch"]:
        return diffusion_coefficient(self.diffusion_name, self.path, t, self.diffusion_norm)


def _ode_ends(config: FlowSamplerConfig, path: Path, prediction: str) -> tuple[float, float]:
    start, end = config.interval or ode_interval(path, prediction)
    for t in (start, end):
        require_finite(path, prediction, ("velocity",), None, t)
    return start, end


def stochastic_times(
    config: FlowSamplerConfig, path: Path, prediction: str
) -> tuple[Float64[Tensor, " points"], float]:
    """The grid of the stochastic steps, and the size of the last step after it (0 for none)."""
    assert config.num_sampling_steps is not None and config.diffusion is not None
    has_last_step = config.last_step != "none"
    start, end = config.interval or sde_interval(
        path, prediction, config.diffusion, has_last_step, _asks_at_end(config)
    )
    if not has_last_step:
        return _grid(start, end, config.num_sampling_steps + 1), 0.0
    size = config.last_step_size or (end - start) / config.num_sampling_steps
    if config.last_step_size is not None and size >= end - start:
        raise ValueError(f"last_step_size = {size} takes the whole way from {start} to {end}")
    return _grid(start, end - size, config.num_sampling_steps), size


def _asks_at_end(config: FlowSamplerConfig) -> bool:
    """Whether the network is asked at the end of the stochastic steps' grid."""
    return config.last_step != "none" or config.method == "stochastic_heun"


def _velocity(field: FlowField, x_t: Latents, t: Float[Tensor, " batch"], y: Labels) -> Latents:
    return field(x_t, t, y).read_as("velocity")


def _grid(start: float, end: float, num_points: int) -> Float64[Tensor, " points"]:
    return torch.linspace(start, end, num_points, dtype=torch.float64)
