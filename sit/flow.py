"""The flow process: a network learns what carries noise to data, and its samplers follow it.

Source: Ma et al. 2024 (SiT); Lipman et al. 2023 (flow matching).
"""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int
from torch import Tensor

from backbone.norms import wide_dtype
from process.denoiser import Denoiser, StepNoise
from process.process import Process
from process.settings import check_fields
from sit.conversions import FlowField
from sit.intervals import training_interval
from sit.losses import RESIDUALS, WEIGHTINGS
from sit.paths import PATHS
from sit.sampler_config import FlowSamplerConfig
from sit.samplers import build_sampler

__all__ = ["FlowConfig", "FlowSamplerConfig", "InterpolantFlow"]

Latents = Float[Tensor, "batch channels height width"]
Labels = Int[Tensor, " batch"]
PerImage = Float[Tensor, " batch"]


@dataclass(frozen=True)
class FlowConfig:
    """What a flow is trained to predict, along which path, and at which times."""

    path: str = field(
        default="linear", metadata={"choices": tuple(PATHS), "help": "how data and noise are mixed"}
    )
    prediction: str = field(
        default="velocity",
        metadata={"choices": tuple(RESIDUALS), "help": "what the network predicts"},
    )
    loss_weighting: str = field(
        default="none",
        metadata={
            "choices": tuple(WEIGHTINGS),
            "help": "of the noise and score losses over time: even, as the error of the velocity "
            "it gives, or as a bound on the likelihood",
        },
    )
    time_sampling: str = field(
        default="uniform",
        metadata={"choices": ("uniform", "logit_normal"), "help": "of training times"},
    )
    logit_mean: float | None = field(
        default=None, metadata={"help": "of log(t / (1 - t)) under logit_normal; null is 0"}
    )
    logit_std: float | None = field(
        default=None,
        metadata={"above": 0, "help": "of log(t / (1 - t)) under logit_normal; null is 1"},
    )
    train_interval: tuple[float, float] | None = field(
        default=None,
        metadata={
            "min": 0,
            "max": 1,
            "help": "times to train at, 0 noise and 1 data; null is [0, 1], short of ends where "
            "path and prediction are singular",
        },
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.prediction == "velocity" and self.loss_weighting != "none":
            raise ValueError(
                f"loss_weighting = {self.loss_weighting} has no effect with prediction = velocity"
            )
        for name in ("logit_mean", "logit_std"):
            if self.time_sampling == "uniform" and getattr(self, name) is not None:
                raise ValueError(
                    f"{name} = {getattr(self, name)} has no effect with time_sampling = uniform"
                )
        if self.train_interval and self.train_interval[0] >= self.train_interval[1]:
            raise ValueError(f"train_interval = {self.train_interval} has to be [low, high]")


DEFAULT_SAMPLER = FlowSamplerConfig()


class InterpolantFlow(Process):
    """Loss and sampler of a flow along a path from noise (t = 0) to data (t = 1).

    All arithmetic is in float32 at least; only the network sees the dtype of the latents. It is
    given t itself, in [0, 1].
    """

    def __init__(self, config: FlowConfig, sampler: FlowSamplerConfig = DEFAULT_SAMPLER) -> None:
        self.config = config
        self.path = PATHS[config.path]
        self.train_interval = config.train_interval or training_interval(
            self.path, config.prediction
        )
        self.sampler_config = sampler.resolved()
        self.sampler = build_sampler(self.sampler_config, self.path, config.prediction)
        self._require_finite_loss()

    def loss(
        self, denoiser: Denoiser, x: Latents, y: Labels, noise: Latents, u: PerImage
    ) -> PerImage:
        """Weighted squared error of the prediction, a mean over each image.

        Velocity and noise are compared as they are, a score as sigma times the score, which is
        the negative noise.
        """
        dtype = wide_dtype(x)
        clean, noise, t = x.to(dtype), noise.to(dtype), self.time(u.to(dtype))
        here = self.path.at(t[:, None, None, None])
        x_t = here.alpha * clean + here.sigma * noise
        field = FlowField(denoiser, self.path, self.config.prediction, x.dtype)
        predicted = field(x_t, t, y).value
        residual = RESIDUALS[self.config.prediction](here, predicted, clean, noise)
        weight = WEIGHTINGS[self.config.loss_weighting](self.path, t)
        return weight * residual.square().mean(dim=(1, 2, 3))

    def time(self, u: PerImage) -> PerImage:
        """Training times from ``u``, uniform in [0, 1]."""
        if self.config.time_sampling == "logit_normal":
            mean, std = self.config.logit_mean or 0.0, self.config.logit_std or 1.0
            u = torch.sigmoid(mean + std * torch.special.ndtri(u))
        start, end = self.train_interval
        return start + (end - start) * u

    @torch.no_grad()
    def sample(
        self, denoiser: Denoiser, noise: Latents, y: Labels, step_noise: StepNoise
    ) -> Latents:
        """The state at the sampler's last time, from ``noise`` at its first."""
        (state,) = deque(self.states(denoiser, noise, y, step_noise), maxlen=1)
        return state.to(noise.dtype)

    def states(
        self, denoiser: Denoiser, noise: Latents, y: Labels, step_noise: StepNoise
    ) -> Iterator[Latents]:
        """The state after every step, in float32 at least; ``sample`` returns the last one.

        Gradients are the caller's affair here.
        """
        field = FlowField(denoiser, self.path, self.config.prediction, noise.dtype)
        return self.sampler.states(field, noise.to(wide_dtype(noise)), y, step_noise)

    def _require_finite_loss(self) -> None:
        low_and_high = torch.tensor([0.0, 1.0])
        image = torch.ones(2, 1, 1, 1)
        y = torch.zeros(2, dtype=torch.long)
        loss = self.loss(lambda x_t, t, y: x_t, image, y, image, low_and_high)
        if not loss.isfinite().all():
            raise ValueError(
                f"train_interval = {self.train_interval} reaches a time at which the loss is not "
                f"finite (path = {self.config.path}, prediction = {self.config.prediction}, "
                f"loss_weighting = {self.config.loss_weighting})"
            )
