"""Settings of a flow: defaults, and refusals that name what is wrong."""

from typing import Any

import pytest

from sit.flow import FlowConfig, FlowSamplerConfig, InterpolantFlow


@pytest.mark.parametrize(
    ("method", "num_steps"),
    [
        ("euler", 250),
        ("heun", 125),
        ("heun3", 83),
        ("midpoint", 125),
        ("rk4", 62),
        ("euler_maruyama", 250),
        ("stochastic_heun", 125),
    ],
)
def test_fixed_steps_cost_250_evaluations_unless_told(method: str, num_steps: int) -> None:
    flow = InterpolantFlow(FlowConfig(), FlowSamplerConfig(method=method))
    assert flow.sampler_config.num_sampling_steps == num_steps


def test_the_settings_in_force_can_be_read() -> None:
    sde = FlowSamplerConfig(method="euler_maruyama", diffusion="linear").resolved()
    assert (sde.diffusion, sde.diffusion_norm, sde.last_step) == ("linear", 1.0, "mean")
    adaptive = FlowSamplerConfig(method="dopri5").resolved()
    assert (adaptive.atol, adaptive.rtol, adaptive.num_sampling_steps) == (1e-6, 1e-3, None)


@pytest.mark.parametrize(
    ("method", "setting"),
    [
        ("dopri5", {"num_sampling_steps": 50}),
        ("dopri5", {"diffusion": "sigma"}),
        ("euler", {"atol": 1e-6}),
        ("euler", {"last_step": "mean"}),
        ("euler", {"last_step": "none"}),
        ("heun", {"last_step_size": 0.04}),
        ("heun", {"diffusion": "sigma"}),
        ("heun", {"diffusion_norm": 1.0}),
        ("euler_maruyama", {"rtol": 1e-3}),
        ("euler_maruyama", {"last_step": "none", "last_step_size": 0.04}),
        ("stochastic_heun", {"num_sampling_steps": 1, "last_step_size": 0.04}),
    ],
)
def test_a_sampler_setting_without_effect_is_refused(method: str, setting: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has no effect"):
        FlowSamplerConfig(method=method, **setting)


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_weighting": "likelihood"},
        {"logit_mean": 0.0},
        {"logit_std": 1.0},
    ],
)
def test_a_training_setting_without_effect_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="has no effect"):
        FlowConfig(**settings)


@pytest.mark.parametrize(
    ("config", "settings", "named"),
    [
        (FlowConfig, {"path": "Linear"}, "linear, gvp, vp"),
        (FlowConfig, {"prediction": "data"}, "velocity, noise, score"),
        (FlowConfig, {"time_sampling": "normal"}, "uniform, logit_normal"),
        (FlowConfig, {"time_sampling": "logit_normal", "logit_std": 0.0}, "above 0"),
        (FlowConfig, {"train_interval": (0.0, 1.5)}, "at most 1"),
        (FlowConfig, {"train_interval": (0.9, 0.1)}, "low, high"),
        (FlowSamplerConfig, {"method": "heun2"}, "heun3, midpoint"),
        (FlowSamplerConfig, {"num_sampling_steps": 0}, "at least 1"),
        (FlowSamplerConfig, {"method": "dopri5", "atol": 0.0}, "above 0"),
        (FlowSamplerConfig, {"method": "euler_maruyama", "diffusion": "SBDM"}, "sbdm, sigma"),
        (FlowSamplerConfig, {"interval": (0.5, 0.5)}, "empty"),
        (FlowSamplerConfig, {"method": "euler_maruyama", "interval": (0.9, 0.1)}, "backward"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(
    config: type, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        config(**settings)


@pytest.mark.parametrize(
    ("flow", "sampler", "named"),
    [
        ({"prediction": "noise"}, {"interval": (0.0, 0.9)}, "t = 0.0"),
        ({"path": "gvp", "prediction": "score"}, {"interval": (1.0, 0.0)}, "t = 0.0"),
        ({"path": "vp", "prediction": "noise"}, {"interval": (0.0, 1.0)}, "t = 1.0"),
        (
            {},
            {"method": "euler_maruyama", "diffusion": "sbdm", "interval": (0.0, 1.0)},
            "sbdm is infinite",
        ),
        (
            {},
            {"method": "stochastic_heun", "last_step": "none", "interval": (0.0, 1.0)},
            "finite score",
        ),
        ({"path": "vp", "train_interval": (0.0, 1.0)}, {}, "loss is not finite"),
        (
            {"prediction": "noise", "loss_weighting": "velocity", "train_interval": (0.0, 0.9)},
            {},
            "loss is not finite",
        ),
        (
            {},
            {"method": "euler_maruyama", "last_step_size": 0.99, "interval": (0.5, 1.0)},
            "whole way",
        ),
    ],
)
def test_an_interval_that_meets_infinity_is_refused(
    flow: dict[str, Any], sampler: dict[str, Any], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        InterpolantFlow(FlowConfig(**flow), FlowSamplerConfig(**sampler))


def test_an_interval_can_be_chosen() -> None:
    forward = InterpolantFlow(
        FlowConfig(prediction="noise"), FlowSamplerConfig(method="euler", interval=(0.2, 0.7))
    )
    assert forward.sampler.times[[0, -1]].tolist() == [0.2, 0.7]
    with_last_step = FlowSamplerConfig(
        method="euler_maruyama", num_sampling_steps=5, interval=(0.5, 1.0)
    )
    times = InterpolantFlow(FlowConfig(), with_last_step).sampler.times
    assert times.tolist() == pytest.approx([0.5, 0.6, 0.7, 0.8, 0.9])
