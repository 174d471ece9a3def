"""Fixed-step samplers: order, counts, noise and times; and what all samplers keep."""

import math
from typing import Any

import pytest
import torch
from exact_gaussian import ExactGaussian
from torch import Tensor

from process.denoiser import CountingDenoiser
from sit.diffusion_coefficients import DIFFUSION_COEFFICIENTS
from sit.flow import FlowConfig, FlowSamplerConfig, InterpolantFlow
from sit.integrators import ODE_METHODS, SDE_METHODS
from sit.last_steps import LAST_STEPS
from sit.paths import PATHS

EVALUATIONS = {"euler": 1, "heun": 2, "heun3": 3, "midpoint": 2, "rk4": 4}  # per step
ORDERS = {"euler": 1, "heun": 2, "heun3": 3, "midpoint": 2, "rk4": 4}
A_SAMPLER_OF_EACH_KIND = [
    {"method": "heun", "num_sampling_steps": 5},
    {"method": "dopri5"},
    {"method": "euler_maruyama", "num_sampling_steps": 5},
    {"method": "stochastic_heun", "num_sampling_steps": 5, "last_step": "none"},
]

every_kind = pytest.mark.parametrize("sampler", A_SAMPLER_OF_EACH_KIND, ids=lambda s: s["method"])


def a_flow(path: str = "linear", prediction: str = "velocity", **sampler: Any) -> InterpolantFlow:
    return InterpolantFlow(FlowConfig(path, prediction), FlowSamplerConfig(**sampler))


def images(num_images: int = 3, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    return torch.randn(num_images, 2, 3, 3).to(dtype), torch.arange(num_images)


def forbidden_noise(i: int) -> Tensor:
    raise AssertionError("a deterministic sampler asked for noise")


@pytest.mark.parametrize("method", ODE_METHODS)
def test_error_falls_with_the_order_of_the_method(method: str) -> None:
    start, y = images()
    network = ExactGaussian("gvp", "velocity")
    errors = []
    for num_steps in (20, 40):
        flow = a_flow("gvp", method=method, num_sampling_steps=num_steps)
        end = flow.sample(network, start, y, forbidden_noise)
        errors.append((end - network.solution(start, 0.0, 1.0)).abs().max().item())
    assert math.log2(errors[0] / errors[1]) == pytest.approx(ORDERS[method], abs=0.2)


@pytest.mark.parametrize("method", [*ODE_METHODS, "dopri5"])
@pytest.mark.parametrize("path", PATHS)
def test_an_ode_never_asks_for_noise(path: str, method: str) -> None:
    start, y = images()
    a_flow(path, method=method).sample(ExactGaussian(path, "velocity"), start, y, forbidden_noise)


@pytest.mark.parametrize("method", ODE_METHODS)
def test_evaluations_of_an_ode(method: str) -> None:
    counting = CountingDenoiser(ExactGaussian("linear", "velocity"))
    start, y = images()
    a_flow(method=method, num_sampling_steps=7).sample(counting, start, y, forbidden_noise)
    assert counting.num_evaluations == 7 * EVALUATIONS[method] * len(start)


@pytest.mark.parametrize("last_step", LAST_STEPS)
@pytest.mark.parametrize("prediction", ["velocity", "noise", "score"])
@pytest.mark.parametrize(("method", "per_step"), [("euler_maruyama", 1), ("stochastic_heun", 2)])
def test_evaluations_of_an_sde(method: str, per_step: int, prediction: str, last_step: str) -> None:
    """One network call per drift, which needs velocity and score; one for the last step."""
    counting = CountingDenoiser(ExactGaussian("linear", prediction))
    start, y = images()
    flow = a_flow(prediction=prediction, method=method, num_sampling_steps=7, last_step=last_step)
    flow.sample(counting, start, y, lambda i: start)
    num_stochastic_steps = 7 if last_step == "none" else 6
    expected = per_step * num_stochastic_steps + (last_step != "none")
    assert counting.num_evaluations == expected * len(start)


@pytest.mark.parametrize("last_step", LAST_STEPS)
@pytest.mark.parametrize("method", SDE_METHODS)
def test_noise_is_asked_for_once_per_stochastic_step_in_order(method: str, last_step: str) -> None:
    asked = []
    start, y = images()

    def step_noise(i: int) -> Tensor:
        asked.append(i)
        return start

    flow = a_flow(method=method, num_sampling_steps=7, last_step=last_step)
    flow.sample(ExactGaussian("linear", "velocity"), start, y, step_noise)
    assert asked == list(range(7 if last_step == "none" else 6))


@pytest.mark.parametrize(
    ("stochastic", "method"), [("euler_maruyama", "euler"), ("stochastic_heun", "heun")]
)
def test_an_sde_without_diffusion_is_the_ode(stochastic: str, method: str) -> None:
    start, y = images()
    network, common = ExactGaussian("gvp", "noise"), {"num_sampling_steps": 9}
    ode = a_flow("gvp", "noise", method=method, **common)
    sde = a_flow("gvp", "noise", method=stochastic, last_step="none", diffusion_norm=0.0, **common)
    expected = ode.sample(network, start, y, forbidden_noise)
    torch.testing.assert_close(sde.sample(network, start, y, lambda i: start), expected)


@pytest.mark.parametrize("num_steps", [1, 2, 10])
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("method", SDE_METHODS)
def test_the_last_step_is_as_long_as_the_others(path: str, method: str, num_steps: int) -> None:
    sampler = a_flow(path, method=method, num_sampling_steps=num_steps).sampler
    assert len(sampler.times) == num_steps
    assert sampler.times[-1].item() + sampler.last_step_size == pytest.approx(1.0)
    for step in sampler.times.diff().tolist():
        assert step == pytest.approx(sampler.last_step_size)


@pytest.mark.parametrize("last_step", sorted(set(LAST_STEPS) - {"none"}))
def test_the_last_step_can_be_taken_alone(last_step: str) -> None:
    """Its state depends on nothing but the state before it."""
    start, y = images()
    network, choice = (
        ExactGaussian("vp", "score"),
        {"method": "euler_maruyama", "last_step": last_step},
    )
    flow = a_flow("vp", "score", num_sampling_steps=6, **choice)
    *_, before, end = flow.states(network, start, y, lambda i: start)
    way = (flow.sampler.times[-1].item(), 1.0)
    alone = a_flow("vp", "score", num_sampling_steps=1, interval=way, **choice)
    torch.testing.assert_close(alone.sample(network, before, y, forbidden_noise), end)


@pytest.mark.parametrize("last_step", LAST_STEPS)
@pytest.mark.parametrize("diffusion", DIFFUSION_COEFFICIENTS)
@pytest.mark.parametrize("path", PATHS)
def test_the_shortest_run_is_finite(path: str, diffusion: str, last_step: str) -> None:
    start, y = images(dtype=torch.float32)
    for prediction in ("velocity", "noise", "score"):
        for method in SDE_METHODS:
            flow = a_flow(
                path,
                prediction,
                method=method,
                diffusion=diffusion,
                last_step=last_step,
                num_sampling_steps=1,
            )
            network = ExactGaussian(path, prediction)
            assert flow.sample(network, start, y, lambda i: start).isfinite().all()


@every_kind
def test_an_image_does_not_depend_on_its_batch(sampler: dict[str, Any]) -> None:
    start, y = images()
    noises = torch.randn(5, *start.shape, dtype=torch.float64)
    network, flow = ExactGaussian("gvp", "noise"), a_flow("gvp", "noise", **sampler)
    together = flow.sample(network, start, y, lambda i: noises[i])
    for j in range(len(y)):
        one = slice(j, j + 1)
        alone = flow.sample(network, start[one], y[one], lambda i, one=one: noises[i, one])
        torch.testing.assert_close(alone, together[one], rtol=1e-12, atol=1e-12)


@every_kind
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_samples_have_the_dtype_of_the_noise(sampler: dict[str, Any], dtype: torch.dtype) -> None:
    start, y = images(dtype=dtype)
    flow, network = a_flow(**sampler), ExactGaussian("linear", "velocity")
    assert flow.sample(network, start, y, lambda i: start.float()).dtype == dtype
    for state in flow.states(network, start, y, lambda i: start.float()):
        assert state.dtype == torch.promote_types(dtype, torch.float32)


@every_kind
def test_labels_reach_the_network(sampler: dict[str, Any]) -> None:
    def network(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return y[:, None, None, None].to(x_t).expand_as(x_t)

    start, y = images()
    start = torch.zeros_like(start)
    end = a_flow(**sampler).sample(network, start, y, lambda i: torch.zeros_like(start))
    assert (end.mean(dim=(1, 2, 3)).diff() > 0.5).all()


@every_kind
def test_sampling_keeps_no_gradients(sampler: dict[str, Any]) -> None:
    start, y = images()
    scale = torch.ones((), dtype=torch.float64, requires_grad=True)
    end = a_flow(**sampler).sample(lambda x_t, t, y: scale * x_t, start, y, lambda i: start)
    assert not end.requires_grad
