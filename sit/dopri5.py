"""Dormand-Prince 5(4): an ODE integrator that chooses its steps, for each image by itself.

Two formulas of order 5 and 4 share six new velocities per step; their difference estimates the
error, and the next step is as long as the tolerances allow. Every image has its own time and its
own step size, so that its result does not depend on its batch. Images that have arrived are not
evaluated again, and the last step is shortened to end exactly at the end.

Source: Dormand and Prince 1980; step control as in Hairer, Norsett and Wanner 1993, II.4.
"""

from collections.abc import Iterator

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


class DormandPrince:
    """Integrates a velocity to the tolerances: error / (atol + rtol |x_t|) is at most 1 in RMS."""

    def __init__(self, atol: float, rtol: float) -> None:
        self.atol = atol
        self.rtol = rtol

    def __call__(
        self, velocity: Field, x_t: Latents, start: float, end: float, y: Int[Tensor, " batch"]
    ) -> Iterator[Latents]:
        """Yields the states of all images after every attempted step, at each image's own time.

        A ValueError where an image's steps become too small to move: its velocity is not finite,
        or the tolerances ask for more than the dtype can hold.
        """
        x_t = x_t.clone()
        t = x_t.new_full((len(x_t),), start)
        t_end = torch.full_like(t, end)
        slope = velocity(x_t, t, y)
        size = self._first_size(velocity, x_t, t, t_end, slope, y)
        while len(moving := torch.nonzero(t != t_end).squeeze(1)):
            self._require_progress(size[moving], t[moving])
            x_t[moving], t[moving], slope[moving], size[moving] = self._attempt(
                velocity,
                x_t[moving],
                t[moving],
                t_end[moving],
                slope[moving],
                size[moving],
                y[moving],
            )
            yield x_t.clone()

    def _attempt(
        self,
        velocity: Field,
        x_t: Latents,
        t: PerImage,
        t_end: PerImage,
        slope: Latents,
        size: PerImage,
        y: Int[Tensor, " batch"],
    ) -> tuple[Latents, PerImage, Latents, PerImage]:
        """State, time, slope there and next step size, after a step that may have been rejected."""
        t_next = torch.where(size < (t_end - t).abs(), t + size * torch.sign(t_end - t), t_end)
        step = (t_next - t)[:, None, None, None]
        slopes = stages(DORMAND_PRINCE, velocity, x_t, t, t_next, y, first=slope)
        x_next = x_t + step * combine(DORMAND_PRINCE.weights, slopes)
        error = step * combine(DORMAND_PRINCE.error_weights, slopes)
        ratio = self._norm(error, torch.maximum(x_t.abs(), x_next.abs()))
        accepted = ratio <= 1
        accepted_images = accepted[:, None, None, None]
        return (
            torch.where(accepted_images, x_next, x_t),
            torch.where(accepted, t_next, t),
            torch.where(accepted_images, slopes[-1], slope),  # its last stage is the next first
            (t_next - t).abs() * _growth(ratio),
        )

    def _first_size(
        self,
        velocity: Field,
        x_t: Latents,
        t: PerImage,
        t_end: PerImage,
        slope: Latents,
        y: Int[Tensor, " batch"],
    ) -> PerImage:
        """A first step size from the sizes of the state, its slope and its curvature."""
        state_norm, slope_norm = self._norm(x_t, x_t.abs()), self._norm(slope, x_t.abs())
        tiny = (state_norm < 1e-5) | (slope_norm < 1e-5)
        trial = torch.where(tiny, 1e-6, 0.01 * state_norm / slope_norm)
        trial = torch.minimum(trial, (t_end - t).abs())
        step = (trial * torch.sign(t_end - t))[:, None, None, None]
        t_ahead = torch.lerp(t, t_end, trial / (t_end - t).abs())  # rounding cannot pass the end
        ahead = velocity(x_t + step * slope, t_ahead, y)
        curvature = self._norm(ahead - slope, x_t.abs()) / trial
        return torch.minimum(100 * trial, (0.01 / torch.maximum(slope_norm, curvature)) ** (1 / 5))

    def _norm(self, values: Latents, magnitude: Latents) -> PerImage:
        """Root mean square of each image, in units of the tolerance."""
        return (values / (self.atol + self.rtol * magnitude)).square().mean(dim=(1, 2, 3)).sqrt()

    def _require_progress(self, size: PerImage, t: PerImage) -> None:
        smallest = 4 * torch.finfo(t.dtype).eps
        stuck = torch.nonzero(~(size > smallest)).squeeze(1)  # NaN is stuck too
        if len(stuck):
            raise ValueError(
                f"dopri5 is stuck at t = {t[stuck[0]].item():.6g}: the velocity there is not "
                f"finite, or atol = {self.atol:g}, rtol = {self.rtol:g} are too small "
                f"for {str(t.dtype).removeprefix('torch.')}"
            )


def _growth(ratio: PerImage) -> PerImage:
    """Next step size over this one, from the error over the tolerance; NaN counts as infinite."""
    ratio = torch.where(ratio.isfinite(), ratio, torch.inf)
    lowest = torch.where(ratio < 1, 1.0, 0.2)
    return torch.clamp(0.9 * ratio ** (-1 / 5), min=lowest, max=torch.full_like(lowest, 10.0))
