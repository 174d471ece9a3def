"""The adaptive integrator: one step size per image, nothing past the end, no endless loop."""

import math

import pytest
import torch
from exact_gaussian import ExactGaussian
from torch import Tensor

from sit.dopri5 import DormandPrince
from sit.flow import FlowConfig, FlowSamplerConfig, InterpolantFlow
from sit.paths import PATHS

FORWARD_AND_BACKWARD = pytest.mark.parametrize("interval", [(0.0, 1.0), (0.9, 0.2)])


class Oscillator:
    """dx/dt = cos(frequency t), of frequency 1 + 20 y, with a record of every call."""

    def __init__(self) -> None:
        self.times: list[Tensor] = []
        self.labels: list[Tensor] = []

    def __call__(self, x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        self.times.append(t.clone())
        self.labels.append(y.clone())
        frequency = 1 + 20 * y.to(t)
        return torch.cos(frequency * t)[:, None, None, None].expand_as(x_t)

    def solution(self, x_t: Tensor, interval: tuple[float, float], y: Tensor) -> Tensor:
        frequency = 1 + 20 * y.to(x_t)
        start, end = interval
        way = (torch.sin(frequency * end) - torch.sin(frequency * start)) / frequency
        return x_t + way[:, None, None, None]

    def evaluations_of(self, label: int) -> int:
        return sum(int((labels == label).sum()) for labels in self.labels)


def integrate(
    velocity: Oscillator, x_t: Tensor, interval: tuple[float, float], y: Tensor, rtol: float = 1e-3
) -> Tensor:
    *_, end = DormandPrince(atol=rtol / 1000, rtol=rtol)(velocity, x_t, *interval, y)
    return end


def images(num_images: int = 3) -> tuple[Tensor, Tensor]:
    return torch.randn(num_images, 2, 3, 3, dtype=torch.float64), torch.arange(num_images)


@FORWARD_AND_BACKWARD
def test_an_image_alone_is_the_image_in_its_batch(interval: tuple[float, float]) -> None:
    x_t, y = images()
    together = integrate(Oscillator(), x_t, interval, y)
    for i in range(len(y)):
        alone = integrate(Oscillator(), x_t[i : i + 1], interval, y[i : i + 1])
        torch.testing.assert_close(alone, together[i : i + 1], rtol=1e-13, atol=1e-13)


@FORWARD_AND_BACKWARD
def test_images_that_have_arrived_are_not_evaluated_again(interval: tuple[float, float]) -> None:
    x_t, y = images()
    together = Oscillator()
    integrate(together, x_t, interval, y)
    for i in range(len(y)):
        alone = Oscillator()
        integrate(alone, x_t[i : i + 1], interval, y[i : i + 1])
        assert together.evaluations_of(i) == alone.evaluations_of(i)
    assert together.evaluations_of(0) < together.evaluations_of(2)


@FORWARD_AND_BACKWARD
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_time_is_outside_the_interval(interval: tuple[float, float], dtype: torch.dtype) -> None:
    x_t, y = images()
    velocity = Oscillator()
    integrate(velocity, x_t.to(dtype), interval, y)
    times = torch.cat(velocity.times)
    low, high = x_t.new_tensor(sorted(interval)).to(dtype)
    assert times.min() == low and times.max() == high  # both ends are asked for exactly


@FORWARD_AND_BACKWARD
def test_error_follows_the_tolerance(interval: tuple[float, float]) -> None:
    x_t, y = images()
    errors = []
    for rtol in (1e-3, 1e-6, 1e-9):
        velocity = Oscillator()
        end = integrate(velocity, x_t, interval, y, rtol)
        errors.append((end - velocity.solution(x_t, interval, y)).abs().max().item())
        assert errors[-1] < 10 * rtol
    assert errors[0] > 100 * errors[2]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("prediction", ["velocity", "noise", "score"])
def test_the_gaussian_flow_is_solved(path: str, prediction: str) -> None:
    config = FlowSamplerConfig(method="dopri5", atol=1e-9, rtol=1e-8)
    flow = InterpolantFlow(FlowConfig(path, prediction), config)
    network, (start, y) = ExactGaussian(path, prediction), images()
    end = flow.sample(network, start, y, lambda i: start)
    torch.testing.assert_close(
        end, network.solution(start, *flow.sampler.interval), rtol=1e-6, atol=1e-6
    )


def test_there_and_back_again() -> None:
    x_t, y = images()
    there = integrate(Oscillator(), x_t, (0.1, 0.9), y, rtol=1e-8)
    back = integrate(Oscillator(), there, (0.9, 0.1), y, rtol=1e-8)
    torch.testing.assert_close(back, x_t, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("first_bad_time", [0.0, 0.4])
def test_a_velocity_that_is_not_finite_ends_the_run(first_bad_time: float) -> None:
    def velocity(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        bad = (t >= first_bad_time)[:, None, None, None]
        return torch.where(bad, math.nan, x_t)

    x_t, y = images()
    with pytest.raises(ValueError, match=f"stuck at t = {first_bad_time:.1g}"):
        integrate(velocity, x_t, (0.0, 1.0), y)


@pytest.mark.usefixtures("unchecked_shapes")
def test_tolerances_below_the_dtype_end_the_run() -> None:
    x_t, y = images()
    with pytest.raises(ValueError, match="too small for float32"):
        integrate(Oscillator(), x_t.float(), (0.0, 1.0), y, rtol=1e-12)


def test_a_flow_that_stands_still_arrives() -> None:
    x_t, y = images()

    def velocity(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(x_t)

    assert torch.equal(integrate(velocity, x_t, (0.0, 1.0), y), x_t)
