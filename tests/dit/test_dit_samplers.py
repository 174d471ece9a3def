"""DDPM and DDIM sampling: which steps are taken, what is drawn, and what is left alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dit.diffusion import DiffusionConfig, DiffusionSamplerConfig, GaussianDiffusion

SHAPE = (3, 2, 4, 5)
Y = torch.tensor([4, 0, 9])


def _process(
    variance: str = "fixed_small", num_timesteps: int = 1000, **sampler: Any
) -> GaussianDiffusion:
    return GaussianDiffusion(
        DiffusionConfig(variance=variance, num_timesteps=num_timesteps),
        DiffusionSamplerConfig(**sampler),
    )


def _wave(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
    """A denoiser that depends on everything that it is given."""
    return torch.tanh(0.9 * x_t + 0.5 * torch.sin(t / 1000 + y)[:, None, None, None].to(x_t))


def _normal(seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)).to(dtype)


def _no_noise(step: int) -> Tensor:
    raise AssertionError(f"noise was drawn in step {step}")


def _point_mass(process: GaussianDiffusion, value: float) -> Callable[..., Tensor]:
    """The exact denoiser of data that are all ``value``."""

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        _, c = process.chain.gather(t, torch.float64)
        return c.noise(x_t, torch.full_like(x_t, value)).to(x_t.dtype)

    return denoiser


def test_as_many_steps_as_timesteps_is_plain_ancestral_sampling() -> None:
    num_timesteps = 200
    process = _process("fixed_large", num_timesteps, num_sampling_steps=num_timesteps)
    ours = process.sample(_wave, _normal(0), Y, lambda i: _normal(1 + i))

    # Algorithm 2 of DDPM, from the betas alone.
    beta = torch.linspace(0.1 / 200, 20 / 200, 200, dtype=torch.float64)
    signal = torch.cumprod(1 - beta, 0)
    x_t = _normal(0)
    for i, t in enumerate(reversed(range(num_timesteps))):
        noise = _wave(x_t, torch.full((3,), t), Y)
        x_t = (x_t - beta[t] / (1 - signal[t]).sqrt() * noise) / (1 - beta[t]).sqrt()
        if t > 0:
            x_t = x_t + beta[t].sqrt() * _normal(1 + i)
    torch.testing.assert_close(ours, x_t, rtol=1e-9, atol=1e-9)


def test_ddim_with_full_noise_is_ddpm_with_the_small_variance() -> None:
    ddim = _process(method="ddim", eta=1.0, num_sampling_steps=20)
    ddpm = _process(method="ddpm", num_sampling_steps=20)
    samples = [p.sample(_wave, _normal(0), Y, lambda i: _normal(1 + i)) for p in (ddim, ddpm)]
    torch.testing.assert_close(*samples, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("num_steps", [1, 10, 50, 250, 1000])
@pytest.mark.parametrize("method", ["ddpm", "ddim"])
def test_network_is_told_the_original_timesteps_from_last_to_first(
    method: str, num_steps: int
) -> None:
    seen: list[Tensor] = []

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        seen.append(t)
        return x_t

    process = _process(method=method, num_sampling_steps=num_steps)
    samples = process.sample(denoiser, _normal(0), Y, lambda i: _normal(i))
    assert samples.isfinite().all()
    assert len(seen) == num_steps
    assert {t.dtype for t in seen} == {torch.int64}
    assert all((t == t[0]).all() and t.shape == Y.shape for t in seen)
    told = [int(t[0]) for t in seen]
    assert told == sorted(told, reverse=True)
    assert told[-1] == 0
    assert told[0] == (999 if num_steps > 1 else 0)


@pytest.mark.parametrize(
    ("settings", "drawn"),
    [
        ({"method": "ddpm"}, list(range(9))),
        ({"method": "ddim", "eta": 0.3}, list(range(9))),
        ({"method": "ddim", "eta": 0.0}, []),
        ({"method": "ddim"}, []),
    ],
)
def test_noise_is_drawn_only_where_it_is_used(settings: dict[str, Any], drawn: list[int]) -> None:
    asked: list[int] = []

    def step_noise(step: int) -> Tensor:
        asked.append(step)
        return _normal(step)

    _process(num_sampling_steps=10, **settings).sample(_wave, _normal(0), Y, step_noise)
    assert asked == drawn


@pytest.mark.parametrize("method", ["ddpm", "ddim"])
def test_latents_of_size_four_survive_unless_clipping_is_asked_for(method: str) -> None:
    free = _process(method=method, num_sampling_steps=20)
    samples = free.sample(_point_mass(free, 4.0), _normal(0), Y, lambda i: _normal(i))
    torch.testing.assert_close(samples, torch.full_like(samples, 4.0))

    cut = _process(method=method, num_sampling_steps=20, clip=1.5)
    samples = cut.sample(_point_mass(cut, 4.0), _normal(0), Y, lambda i: _normal(i))
    torch.testing.assert_close(samples, torch.full_like(samples, 1.5))


@pytest.mark.parametrize("method", ["ddpm", "ddim"])
def test_an_image_does_not_depend_on_its_batch(method: str) -> None:
    process = _process(method=method, num_sampling_steps=10)
    together = process.sample(_wave, _normal(0), Y, lambda i: _normal(1 + i))
    for j in range(len(Y)):
        one = slice(j, j + 1)
        alone = process.sample(
            _wave, _normal(0)[one], Y[one], lambda i, one=one: _normal(1 + i)[one]
        )
        torch.testing.assert_close(alone, together[one], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_network_and_caller_see_the_dtype_of_the_noise(dtype: torch.dtype) -> None:
    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        assert x_t.dtype == dtype
        return _wave(x_t, t, y)

    process = _process(num_sampling_steps=10)
    samples = process.sample(denoiser, _normal(0, dtype), Y, lambda i: _normal(1 + i))
    assert samples.dtype == dtype


def test_states_on_the_way_are_not_rounded_to_a_short_dtype() -> None:
    def zero(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return torch.zeros_like(x_t)

    process = _process(num_sampling_steps=50)
    start = _normal(0, torch.bfloat16)
    short = process.sample(zero, start, Y, lambda i: _normal(1 + i))
    wide = process.sample(zero, start.float(), Y, lambda i: _normal(1 + i))
    assert torch.equal(short, wide.bfloat16())


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"method": "euler"}, "'euler'.*ddpm, ddim"),
        ({"method": "ddpm", "eta": 0.0}, "eta = 0.0 has no effect with method ddpm"),
        ({"method": "ddim", "eta": 1.5}, "eta = 1.5"),
        ({"clip": 0.0}, "clip = 0.0"),
        ({"num_sampling_steps": 1001}, "1001 .*1000 timesteps"),
        ({"num_sampling_steps": 0}, "num_sampling_steps = 0"),
        ({"num_sampling_steps": 73, "spacing": "ddim"}, "73 steps"),
        ({"num_sampling_steps": 50, "spacing": "10,15,20"}, "45 steps.*50"),
    ],
)
def test_settings_that_cannot_be_or_have_no_effect_are_refused(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        _process(**settings)


def test_a_prediction_that_does_not_fit_the_variance_is_refused() -> None:
    with pytest.raises(ValueError, match="needs predictions with 4, found 2"):
        _process("learned_range").sample(_wave, _normal(0), Y, _no_noise)
