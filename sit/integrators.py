"""Fixed-step integrators: from the state at the first time to the state at the last.

Each yields the state after every step. ODE methods are Runge-Kutta tableaux and follow a
velocity; SDE methods follow dx_t = drift dt + sqrt(2 diffusion) dW. Times may run backward for an
ODE. A network is asked only at times of the grid and between them, never outside.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from process.denoiser import StepNoise

Latents = Float[Tensor, "batch channels height width"]
Labels = Int[Tensor, " batch"]
Grid = Float64[Tensor, " points"]
Field = Callable[[Tensor, Tensor, Tensor], Tensor]  # (x_t, t, y) -> velocity, or drift
Diffusion = Callable[[Tensor], Tensor]  # (t) -> D(t)


@dataclass(frozen=True)
class RungeKutta:
    """A Butcher tableau: stage i is asked at ``nodes[i]`` of the step, after moving by ``rows[i]``.

    ``weights`` combine the slopes of the stages into the step, ``error_weights`` into an estimate
    of its error, where the method has one.
    """

    nodes: tuple[float, ...]
    rows: tuple[tuple[float, ...], ...]
    weights: tuple[float, ...]
    error_weights: tuple[float, ...] = ()


EULER = RungeKutta((0.0,), ((),), (1.0,))
HEUN = RungeKutta((0.0, 1.0), ((), (1.0,)), (1 / 2, 1 / 2))
HEUN3 = RungeKutta((0.0, 1 / 3, 2 / 3), ((), (1 / 3,), (0.0, 2 / 3)), (1 / 4, 0.0, 3 / 4))
MIDPOINT = RungeKutta((0.0, 1 / 2), ((), (1 / 2,)), (0.0, 1.0))
RK4 = RungeKutta(  # the 3/8 rule
    nodes=(0.0, 1 / 3, 2 / 3, 1.0),
    rows=((), (1 / 3,), (-1 / 3, 1.0), (1.0, -1.0, 1.0)),
    weights=(1 / 8, 3 / 8, 3 / 8, 1 / 8),
)


def runge_kutta(
    method: RungeKutta, velocity: Field, x_t: Latents, times: Grid, y: Labels
) -> Iterator[Latents]:
    """Follows ``velocity`` along a grid of times."""
    for t, t_next in pairwise(per_image(times, x_t)):
        slopes = stages(method, velocity, x_t, t, t_next, y)
        x_t = x_t + _wide(t_next - t) * combine(method.weights, slopes)
        yield x_t


def stages(
    method: RungeKutta,
    velocity: Field,
    x_t: Latents,
    t: Float[Tensor, " batch"],
    t_next: Float[Tensor, " batch"],
    y: Labels,
    first: Latents | None = None,
) -> list[Tensor]:
    """The slopes at all stages of one step; ``first`` is that of the first stage, where known."""
    slopes = [velocity(x_t, t, y) if first is None else first]
    for node, row in zip(method.nodes[1:], method.rows[1:], strict=True):
        x_stage = x_t + _wide(t_next - t) * combine(row, slopes)
        slopes.append(velocity(x_stage, torch.lerp(t, t_next, node), y))
    return slopes


def combine(weights: tuple[float, ...], slopes: list[Tensor]) -> Tensor:
    """The weighted sum of the slopes; those of weight 0 are left out."""
    weighted = [w * slope for w, slope in zip(weights, slopes, strict=True) if w]
    return torch.stack(weighted).sum(dim=0)


def euler_maruyama(
    drift: Field,
    diffusion: Diffusion,
    x_t: Latents,
    times: Grid,
    y: Labels,
    step_noise: StepNoise,
) -> Iterator[Latents]:
    """One drift evaluation per step, at its start."""
    for i, (t, t_next) in enumerate(pairwise(per_image(times, x_t))):
        step = _wide(t_next - t)
        spread = torch.sqrt(2 * _wide(diffusion(t)) * step)
        x_t = x_t + step * drift(x_t, t, y) + spread * step_noise(i).to(x_t)
        yield x_t


def stochastic_heun(
    drift: Field,
    diffusion: Diffusion,
    x_t: Latents,
    times: Grid,
    y: Labels,
    step_noise: StepNoise,
) -> Iterator[Latents]:
    """All of a step's noise first, then Heun's deterministic step along the drift.

    Two drift evaluations per step; the second is at its end, the end of the grid included.
    Source: Karras et al. 2022 (EDM), algorithm 2, in the form of Ma et al. 2024 (SiT).
    """
    for i, (t, t_next) in enumerate(pairwise(per_image(times, x_t))):
        step = _wide(t_next - t)
        x_noised = x_t + torch.sqrt(2 * _wide(diffusion(t)) * step) * step_noise(i).to(x_t)
        slope = drift(x_noised, t, y)
        slope_next = drift(x_noised + step * slope, t_next, y)
        x_t = x_noised + step * (slope + slope_next) / 2
        yield x_t


def per_image(times: Grid, x_t: Latents) -> list[Tensor]:
    """Each time of a grid, repeated for every image, in the dtype and on the device of ``x_t``."""
    return [x_t.new_full((len(x_t),), t) for t in times.tolist()]


def _wide(per_image: Float[Tensor, " batch"]) -> Float[Tensor, "batch 1 1 1"]:
    return per_image[:, None, None, None]


ODE_METHODS = {
    "euler": EULER,
    "heun": HEUN,
    "heun3": HEUN3,
    "midpoint": MIDPOINT,
    "rk4": RK4,
}
SDE_METHODS = {"euler_maruyama": euler_maruyama, "stochastic_heun": stochastic_heun}
