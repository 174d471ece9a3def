"""The samplers of Gaussian diffusion, by name, and their settings."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from jaxtyping import Int
from torch import Tensor

from dit.chain import Chain, Latents
from dit.markov import ImplicitTransition, MarkovSampler, ancestral_transition
from dit.respacing import SPACINGS, kept_timesteps, section_steps
from dit.variance import Variance
from process.denoiser import Denoiser, StepNoise
from process.settings import check_fields

Sampler = Callable[[Denoiser, Latents, Int[Tensor, " batch"], StepNoise], Latents]
"""``sampler(denoiser, noise, y, step_noise)``, as in ``Process.sample``."""


def _ddpm(config: "DiffusionSamplerConfig", chain: Chain, variance: Variance) -> Sampler:
    return MarkovSampler(_respaced(chain, config), variance, ancestral_transition, config.clip)


def _ddim(config: "DiffusionSamplerConfig", chain: Chain, variance: Variance) -> Sampler:
    transition = ImplicitTransition(eta=0.0 if config.eta is None else config.eta)
    return MarkovSampler(_respaced(chain, config), variance, transition, config.clip)


def _respaced(chain: Chain, config: "DiffusionSamplerConfig") -> Chain:
    return chain.respaced(kept_timesteps(len(chain), config.num_sampling_steps, config.spacing))


SAMPLERS = {"ddpm": _ddpm, "ddim": _ddim}


@dataclass(frozen=True)
class DiffusionSamplerConfig:
    """Raises a ValueError for a setting that is out of range or has no effect."""

    method: str = field(default="ddpm", metadata={"choices": tuple(SAMPLERS)})
    num_sampling_steps: int = field(
        default=250, metadata={"min": 1, "help": "timesteps visited, one network call each"}
    )
    spacing: str = field(default="even", metadata={"help": f"which timesteps: {SPACINGS}"})
    eta: float | None = field(
        default=None,
        metadata={
            "min": 0,
            "max": 1,
            "help": "ddim only: fresh noise per step, 1 draws as much as ddpm; null: none",
        },
    )
    clip: float | None = field(
        default=None,
        metadata={
            "above": 0,
            "help": "cut predicted clean latents to [-clip, clip]; null: never",
        },
    )

    def __post_init__(self) -> None:
        check_fields(self)
        section_steps(self.spacing, self.num_sampling_steps)
        if self.eta is not None and self.method != "ddim":
            raise ValueError(f"eta = {self.eta} has no effect with method {self.method}, only ddim")

    def resolved(self) -> "DiffusionSamplerConfig":
        """The same settings, with the method's defaults in place of null."""
        return replace(self, eta=0.0) if self.method == "ddim" and self.eta is None else self


def build_sampler(config: DiffusionSamplerConfig, chain: Chain, variance: Variance) -> Sampler:
    """The sampler of a training chain.

    Raises a ValueError where the chain cannot be spaced as asked.
    """
    return SAMPLERS[config.method](config, chain, variance)
