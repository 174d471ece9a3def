"""The settings of a flow's sampler, each checked to act on the method it is given with."""

import dataclasses
from dataclasses import dataclass, field
from typing import Any

from process.settings import check_fields
from sit.diffusion_coefficients import DIFFUSION_COEFFICIENTS
from sit.integrators import ODE_METHODS, SDE_METHODS
from sit.last_steps import LAST_STEPS

METHODS = (*ODE_METHODS, "dopri5", *SDE_METHODS)


@dataclass(frozen=True)
class FlowSamplerConfig:
    """Every setting that is given has to act on the method; those left null take its defaults."""

    method: str = field(
        default="heun",
        metadata={
            "choices": METHODS,
            "help": "ODE: euler, heun, dopri5 (adaptive, per image); SDE: the others",
        },
    )
    num_sampling_steps: int | None = field(
        default=None,
        metadata={
            "min": 1,
            "help": "steps of equal length, an SDE's last step included; not for dopri5; "
            "null is 250 with one network evaluation per step, 125 with two",
        },
    )
    diffusion: str | None = field(
        default=None,
        metadata={
            "choices": tuple(DIFFUSION_COEFFICIENTS),
            "help": "noise that an SDE mixes in over time; null is sigma",
        },
    )
    diffusion_norm: float | None = field(
        default=None, metadata={"min": 0, "help": "factor of an SDE's diffusion; null is 1"}
    )
    last_step: str | None = field(
        default=None,
        metadata={
            "choices": tuple(LAST_STEPS),
            "help": "an SDE's step without noise; null is mean",
        },
    )
    last_step_size: float | None = field(
        default=None,
        metadata={"min": 1e-5, "below": 1, "help": "in t; null is the length of the other steps"},
    )
    atol: float | None = field(
        default=None, metadata={"above": 0, "help": "dopri5's absolute tolerance; null is 1e-6"}
    )
    rtol: float | None = field(
        default=None, metadata={"above": 0, "help": "dopri5's relative tolerance; null is 1e-3"}
    )
    interval: tuple[float, float] | None = field(
        default=None,
        metadata={
            "min": 0,
            "max": 1,
            "help": "times that the run starts and ends at, an SDE's last step included; null is "
            "[0, 1], short of ends where path and prediction are singular; an ODE may run backward",
        },
    )

    def __post_init__(self) -> None:
        check_fields(self)
        self._check_every_setting_acts()
        if self.interval and self.interval[0] == self.interval[1]:
            raise ValueError(f"interval = {self.interval} is empty")
        if self.is_stochastic and self.interval and self.interval[0] > self.interval[1]:
            raise ValueError(f"interval = {self.interval} runs backward, which an SDE cannot")

    @property
    def is_stochastic(self) -> bool:
        return self.method in SDE_METHODS

    def resolved(self) -> "FlowSamplerConfig":
        """The same settings, with the method's defaults in place of null."""
        defaults = _settings_of(self.method)
        missing = {name: v for name, v in defaults.items() if getattr(self, name) is None}
        return dataclasses.replace(self, **missing)

    def _check_every_setting_acts(self) -> None:
        acting = {"method", "interval", *_settings_of(self.method)}
        for setting in dataclasses.fields(self):
            value = getattr(self, setting.name)
            if value is not None and setting.name not in acting:
                raise ValueError(
                    f"{setting.name} = {value} has no effect with method = {self.method}"
                )
        for name, value in (("last_step", "none"), ("num_sampling_steps", 1)):
            if self.last_step_size is not None and getattr(self, name) == value:
                raise ValueError(
                    f"last_step_size = {self.last_step_size} has no effect with {name} = {value}"
                )


def _settings_of(method: str) -> dict[str, Any]:
    """The settings that act on a method, with their defaults."""
    if method == "dopri5":
        return {"atol": 1e-6, "rtol": 1e-3}
    if method in ODE_METHODS:
        return {"num_sampling_steps": 250 // len(ODE_METHODS[method].nodes)}
    return {
        "num_sampling_steps": 250 if method == "euler_maruyama" else 125,
        "diffusion": "sigma",
        "diffusion_norm": 1.0,
        "last_step": "mean",
        "last_step_size": None,
    }
