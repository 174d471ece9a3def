"""Dormand-Prince 5(4): an ODE integrator that chooses its steps, for each image by itself.

Two formulas of order 5 and 4 share six new velocities per step; their difference estimates the
error, and the next step is as long as the tolerances allow. Every image has its own time and its
own step size, so that its result does not depend on its batch. Images that have arrived are not
evaluated again, and the last step is shortened to end exactly at the end.

Source: Dormand and Prince 1980; step control as in Hairer, Norsett and Wanner 1993, II.4.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sit.integrators import Field, RungeKutta, combine, stages

Latents = Float[Tensor, "batch channels height width"]
PerImage = Float[Tensor, " batch"]

DORMAND_PRINCE = RungeKutta(
    nodes=(0.0, 1 / 5, 3 / 10, 4 / 5, 8 / 9, 1.0, 1.0),
    rows=(
        (),
        (1 / 5,),
        (3 / 40, 9 / 40),
        (44 / 45, -56 / 15, 32 / 9),
        (19372 / 6561, -25360 / 2187, 64448 / 6561, -212 / 729),
        (9017 / 3168, -355 / 33, 46732 / 5247, 49 / 176, -5103 / 18656),
        (35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84),
    ),
    weights=(35 / 384, 0.0, 500 / 1113, 125 / 192, -2187 / 6784, 11 / 84, 0.0),
    error_weights=(71 / 57600, 0.0, -71 / 16695, 71 / 1920, -17253 / 339200, 22 / 525, -1 / 40),
)


MAX_ATTEMPTS = 2_000  # steps; tolerances that a dtype can hold take far fewer


@dataclass(frozen=True)
class Progress:
    """How far images have come, each at its own time and with its own step size."""

    x_t: Tensor
    t: Tensor
    end: Tensor
    slope: Tensor  # the velocity at (x_t, t)
    size: Tensor  # length of the next step, positive
    y: Tensor

    def of(self, images: Tensor) -> "Progress":
        return Progress(*(values[images] for values in self._values()))

    def update(self, images: Tensor, progress: "Progress") -> None:
        """Replaces what some of the images had reached, in place."""
        for values, new in zip(self._values(), progress._values(), strict=True):
            values[images] = new

    def _values(self) -> tuple[Tensor, ...]:
        return self.x_t, self.t, self.end, self.slope, self.size, self.y


class DormandPrince:
    """Integrates a velocity, keeping the error of every step below atol + rtol |x_t|.

    Both are measured by their ratio's root mean square over each image.
    """

    def __init__(self, atol: float, rtol: float) -> None:
        self.atol = atol
        self.rtol = rtol

    def __call__(
        self, velocity: Field, x_t: Latents, start: float, end: float, y: Int[Tensor, " batch"]
    ) -> Iterator[Latents]:
        """Yields the states of all images after every attempted step, at each image's own time.

        A ValueError where an image's steps become too small or too many: its velocity is not
        finite, or the tolerances ask for more than the dtype can hold.
        """
        everyone = self._begin(velocity, x_t, start, end, y)
        for attempt in count():
            moving = torch.nonzero(everyone.t != everyone.end).squeeze(1)
            if not len(moving):
                return
            progress = everyone.of(moving)
            self._require_hope(progress, attempt)
            everyone.update(moving, self._attempt(velocity, progress))
            yield everyone.x_t.clone()

    def _begin(
        self, velocity: Field, x_t: Latents, start: float, end: float, y: Int[Tensor, " batch"]
    ) -> Progress:
        """The first step size comes from the sizes of the state, its slope and its curvature."""
        t = x_t.new_full((len(x_t),), start)
        t_end = torch.full_like(t, end)
        way = t_end - t
        slope = velocity(x_t, t, y)
        state_norm, slope_norm = self._norm(x_t, x_t.abs()), self._norm(slope, x_t.abs())
        tiny = (state_norm < 1e-5) | (slope_norm < 1e-5)
        trial = torch.where(tiny, 1e-6, 0.01 * state_norm / slope_norm)
        trial = torch.minimum(trial, way.abs())
        t_ahead = torch.lerp(t, t_end, trial / way.abs())  # rounding cannot pass the end
        x_ahead = x_t + (trial * way.sign())[:, None, None, None] * slope
        bend = self._norm(velocity(x_ahead, t_ahead, y) - slope, x_t.abs()) / trial
        size = torch.minimum(100 * trial, (0.01 / torch.maximum(slope_norm, bend)) ** (1 / 5))
        return Progress(x_t.clone(), t, t_end, slope.clone(), size, y.clone())

    def _attempt(self, velocity: Field, now: Progress) -> Progress:
        """The progress after one step, or after finding it too long."""
        way = now.end - now.t
        t_next = torch.where(now.size < way.abs(), now.t + now.size * way.sign(), now.end)
        step = (t_next - now.t)[:, None, None, None]
        slopes = stages(DORMAND_PRINCE, velocity, now.x_t, now.t, t_next, now.y, first=now.slope)
        x_next = now.x_t + step * combine(DORMAND_PRINCE.weights, slopes)
        error = step * combine(DORMAND_PRINCE.error_weights, slopes)
        ratio = self._norm(error, torch.maximum(now.x_t.abs(), x_next.abs()))
        good = ratio <= 1
        good_images = good[:, None, None, None]
        return Progress(
            x_t=torch.where(good_images, x_next, now.x_t),
            t=torch.where(good, t_next, now.t),
            end=now.end,
            slope=torch.where(good_images, slopes[-1], now.slope),  # its last stage is at the end
            size=(t_next - now.t).abs() * _growth(ratio),
            y=now.y,
        )

    def _norm(self, values: Latents, magnitude: Latents) -> PerImage:
        """Root mean square of each image, in units of the tolerance."""
        return (values / (self.atol + self.rtol * magnitude)).square().mean(dim=(1, 2, 3)).sqrt()

    def _require_hope(self, progress: Progress, attempt: int) -> None:
        stuck = ~(progress.size > 4 * torch.finfo(progress.t.dtype).eps)  # NaN is stuck, too
        if attempt == MAX_ATTEMPTS:
            stuck = torch.ones_like(stuck)
        if stuck.any():
            raise ValueError(
                f"dopri5 is stuck at t = {progress.t[stuck][0].item():.6g} after {attempt} steps: "
                f"the velocity there is not finite, or atol = {self.atol:g}, rtol = {self.rtol:g} "
                f"are too small for {str(progress.t.dtype).removeprefix('torch.')}"
            )


def _growth(ratio: PerImage) -> PerImage:
    """Next step size over this one, from the error over the tolerance; NaN counts as infinite."""
    ratio = torch.where(ratio.isfinite(), ratio, torch.inf)
    lowest = torch.where(ratio < 1, 1.0, 0.2)
    return torch.clamp(0.9 * ratio ** (-1 / 5), min=lowest, max=torch.full_like(lowest, 10.0))
