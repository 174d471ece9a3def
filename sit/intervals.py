"""Between which times a flow trains and samples, so that nothing on the way is infinite.

At the noise end of the linear and GVP paths alpha is 0, and a noise or score prediction says
nothing about the velocity; at their data end sigma is 0, and the score is out of reach. The VP path
has an infinite sigma' at the data end. Each use stays away from the ends that it cannot use; these
limits are the published ones (Ma et al. 2024, SiT, and its code) wherever those are finite.
"""

import torch

from sit.conversions import convert
from sit.diffusion_coefficients import diffusion_coefficient
from sit.paths import Path

SAMPLING_MARGIN = 1e-3  # distance that sampling keeps from an end it cannot use


def training_interval(
    path: Path, prediction: str, margin: float | None = None
) -> tuple[float, float]:
    """Times to train at; ``margin`` None is the path's own."""
    converts = prediction != "velocity"
    return path.usable_interval(
        path.train_margin if margin is None else margin,
        divides_by_alpha=converts,
        divides_by_sigma=converts,
    )


def ode_interval(path: Path, prediction: str) -> tuple[float, float]:
    """Times between which the probability flow runs."""
    converts = prediction != "velocity"
    return path.usable_interval(
        SAMPLING_MARGIN, divides_by_alpha=converts, divides_by_sigma=converts
    )


def sde_interval(
    path: Path, prediction: str, diffusion: str, has_last_step: bool, asks_at_end: bool
) -> tuple[float, float]:
    """Times between which the SDE runs, a last step included.

    ``asks_at_end``: whether the method wants the score at the end of its stochastic steps. A last
    step goes on to t = 1 from where these end.
    """
    singular = prediction != "velocity" or diffusion == "sbdm"
    start, end = path.usable_interval(
        SAMPLING_MARGIN, divides_by_alpha=singular, divides_by_sigma=singular or asks_at_end
    )
    return start, 1.0 if has_last_step else end


def require_finite(
    path: Path, prediction: str, targets: tuple[str, ...], diffusion: str | None, t: float
) -> None:
    """A ValueError if, at time t, the prediction leaves a target or the diffusion infinite."""
    time = torch.full((1, 1, 1, 1), t)
    x_t = torch.ones(1, 1, 1, 1)
    for target in targets:
        if not convert(path.at(time), x_t, prediction, target, x_t).isfinite().all():
            raise ValueError(
                f"the interval reaches t = {t}, where a {prediction} prediction gives no finite "
                f"{target} on the {type(path).__name__}"
            )
    if diffusion and not diffusion_coefficient(diffusion, path, time, 1.0).isfinite().all():
        raise ValueError(f"the interval reaches t = {t}, where diffusion = {diffusion} is infinite")
