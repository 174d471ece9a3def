"""Noise schedules: how much noise each step of the training chain adds.

A schedule is the list of ``beta``, the variance that a step adds while it shrinks the signal by
sqrt(1 - beta). Both schedules are functions of position / num_timesteps, so a chain of any
length ends in nearly pure noise: fewer timesteps mean larger betas.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from process.settings import choose


def alpha_bars(schedule: str, num_timesteps: int) -> Float64[Tensor, " timesteps"]:
    """The cumulative products of 1 - beta: the share of the signal's variance that is left."""
    betas = choose(SCHEDULES, "schedule", schedule)(num_timesteps)
    return torch.cumprod(1 - betas, dim=0)


def linear_betas(num_timesteps: int) -> Float64[Tensor, " timesteps"]:
    """From 0.1 / T to 20 / T, equally spaced: 1e-4 to 0.02 for the usual T = 1000.

    Source: Ho et al. 2020 (DDPM); the scaling to other T is that of Nichol and Dhariwal 2021.
    """
    if num_timesteps <= 20:
        raise ValueError(
            f"the linear schedule needs num_timesteps above 20, not {num_timesteps}: "
            "its last beta is 20 / num_timesteps"
        )
    return torch.linspace(
        0.1 / num_timesteps, 20 / num_timesteps, num_timesteps, dtype=torch.float64
    )


def cosine_betas(num_timesteps: int) -> Float64[Tensor, " timesteps"]:
    """The betas that give alpha_bar(u) = cos^2(pi/2 (u + 0.008) / 1.008), at most 0.999 each.

    The limit keeps alpha_bar above zero at the noise end. Source: Nichol and Dhariwal 2021.
    """
    u = torch.arange(num_timesteps + 1, dtype=torch.float64) / num_timesteps
    alpha_bar = torch.cos(math.pi / 2 * (u + 0.008) / 1.008).square()
    return (1 - alpha_bar[1:] / alpha_bar[:-1]).clamp(max=0.999)


SCHEDULES = {"linear": linear_betas, "cosine": cosine_betas}
