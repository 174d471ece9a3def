"""The hybrid loss: what its two terms are worth, and what learns from which."""

import math

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal
from torch.distributions import kl_divergence as torch_kl

from dit.diffusion import DiffusionConfig, DiffusionSamplerConfig, GaussianDiffusion
from dit.loss import Gaussian, kl_divergence, log_likelihood_8_bit
from process.denoiser import Denoiser

SHAPE = (6, 4, 3, 5)
Y = torch.zeros(SHAPE[0], dtype=torch.int64)


def _process(**settings: object) -> GaussianDiffusion:
    return GaussianDiffusion(DiffusionConfig(**settings))  # type: ignore[arg-type]


def _inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    """Clean latents, noise, and a prediction with variance values."""
    x, noise = torch.randn(2, *SHAPE).to(dtype)
    prediction = torch.randn(SHAPE[0], 2 * SHAPE[1], *SHAPE[2:]).to(dtype)
    return x, noise, prediction


def _answering(prediction: Tensor) -> Denoiser:
    return lambda x_t, t, y: prediction


def _u(*timesteps: int, num_timesteps: int = 1000) -> Tensor:
    return (torch.tensor(timesteps) + 0.5) / num_timesteps


def _number(value: float) -> Tensor:
    return torch.full((1, 1, 1, 1), value, dtype=torch.float64)


def test_kl_of_a_worked_example() -> None:
    p, q = Gaussian(_number(0.0), _number(0.0)), Gaussian(_number(1.0), _number(math.log(4)))
    # ln(2 / 1) + (1 + 1) / (2 * 4) - 1 / 2
    assert kl_divergence(p, q).item() == pytest.approx(math.log(2) - 0.25, rel=1e-12)


def test_bound_is_the_closed_form_divergence_in_bits() -> None:
    process = _process()
    x, noise, prediction = _inputs()
    timesteps = torch.tensor([1, 2, 10, 500, 998, 999])
    parts = process.loss_parts(_answering(prediction), x, Y, noise, _u(*timesteps.tolist()))

    # The same from betas alone, in DDPM's own form, with torch's divergence of two normals.
    beta = torch.linspace(1e-4, 0.02, 1000, dtype=torch.float64)
    signal = torch.cumprod(1 - beta, 0)
    b, s, before = (
        table[timesteps].reshape(-1, 1, 1, 1) for table in (beta, signal, signal.roll(1))
    )
    x_t = s.sqrt() * x + (1 - s).sqrt() * noise
    low = b * (1 - before) / (1 - s)
    fraction = (prediction[:, 4:] + 1) / 2
    model_variance = b**fraction * low ** (1 - fraction)
    true_mean = (x_t - b / (1 - s).sqrt() * noise) / (1 - b).sqrt()
    model_mean = (x_t - b / (1 - s).sqrt() * prediction[:, :4]) / (1 - b).sqrt()
    nats = torch_kl(Normal(true_mean, low.sqrt()), Normal(model_mean, model_variance.sqrt()))
    expected = nats.mean((1, 2, 3)) / math.log(2)
    assert parts.vb is not None
    torch.testing.assert_close(parts.vb, expected, rtol=1e-8, atol=0)


def test_loss_is_the_sum_of_its_parts() -> None:
    process = _process()
    x, noise, prediction = _inputs()
    u = _u(0, 1, 200, 400, 600, 999)
    parts = process.loss_parts(_answering(prediction), x, Y, noise, u)
    assert parts.vb is not None
    torch.testing.assert_close(parts.mse, (prediction[:, :4] - noise).square().mean((1, 2, 3)))
    loss = process.loss(_answering(prediction), x, Y, noise, u)
    torch.testing.assert_close(loss, parts.mse + parts.vb)


def test_bound_sends_no_gradient_to_the_predicted_noise() -> None:
    x, noise, prediction = _inputs()
    prediction.requires_grad_()
    u = _u(0, 1, 200, 400, 600, 999)
    parts = _process().loss_parts(_answering(prediction), x, Y, noise, u)
    assert parts.vb is not None
    (gradient,) = torch.autograd.grad(parts.vb.sum(), prediction, retain_graph=True)
    assert (gradient[:, :4] == 0).all()
    assert (gradient[:, 4:].flatten(1).abs().amax(1) > 0).all()
    (gradient,) = torch.autograd.grad(parts.mse.sum(), prediction)
    assert (gradient[:, 4:] == 0).all()
    assert (gradient[:, :4].flatten(1).abs().amax(1) > 0).all()


def test_levels_of_8_bit_data_share_the_whole_probability() -> None:
    levels = torch.arange(256, dtype=torch.float64).reshape(1, 1, 16, 16) / 127.5 - 1
    model = Gaussian(torch.full_like(levels, 0.3), torch.full_like(levels, math.log(0.04)))
    assert log_likelihood_8_bit(levels, model).exp().sum().item() == pytest.approx(1, abs=1e-9)


def test_likelihood_of_a_level_is_the_density_times_its_width() -> None:
    x = torch.linspace(-0.9, 0.9, 25, dtype=torch.float64).reshape(1, 1, 5, 5)
    model = Gaussian(torch.zeros_like(x), torch.full_like(x, math.log(0.25)))
    expected = Normal(0.0, 0.5).log_prob(x) + math.log(2 / 255)
    torch.testing.assert_close(log_likelihood_8_bit(x, model), expected, atol=0.02, rtol=0)


@pytest.mark.parametrize("variance", ["fixed_large", "fixed_small"])
def test_fixed_variance_leaves_the_squared_error_alone(variance: str) -> None:
    x, noise, prediction = _inputs()
    prediction = prediction[:, :4]
    process, u = _process(variance=variance), _u(0, 1, 200, 400, 600, 999)
    assert process.loss_parts(_answering(prediction), x, Y, noise, u).vb is None
    loss = process.loss(_answering(prediction), x, Y, noise, u)
    torch.testing.assert_close(loss, (prediction - noise).square().mean((1, 2, 3)))


@pytest.mark.parametrize(("variance", "channels"), [("learned_range", 4), ("fixed_large", 8)])
def test_a_prediction_that_does_not_fit_the_variance_is_refused(
    variance: str, channels: int
) -> None:
    x, noise, prediction = _inputs()
    with pytest.raises(ValueError, match=f"found {channels}"):
        denoiser = _answering(prediction[:, :channels])
        _process(variance=variance).loss(denoiser, x, Y, noise, _u(0, 1, 2, 3, 4, 5))


def test_loss_of_an_image_does_not_depend_on_its_batch() -> None:
    x, noise, _ = _inputs()
    u = _u(0, 1, 200, 400, 600, 999)

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        wave = torch.sin(x_t + t[:, None, None, None])
        return torch.cat([wave, wave * x_t], dim=1)

    together = _process().loss(denoiser, x, Y, noise, u)
    alone = [
        _process().loss(denoiser, x[i : i + 1], Y[:1], noise[i : i + 1], u[i : i + 1])
        for i in range(len(x))
    ]
    torch.testing.assert_close(together, torch.cat(alone), rtol=1e-12, atol=0)


@pytest.mark.parametrize("num_timesteps", [50, 1000, 4000])
def test_time_is_the_floor_of_u_times_the_length_of_the_chain(num_timesteps: int) -> None:
    largest = torch.nextafter(torch.tensor(1.0), torch.tensor(0.0)).item()
    u = torch.tensor([0.0, 0.999 / num_timesteps, 1.001 / num_timesteps, 0.5, largest, 1.0])
    x, noise, prediction = _inputs(torch.float32)
    seen: list[Tensor] = []

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        seen.append(t)
        return prediction

    process = GaussianDiffusion(
        DiffusionConfig(num_timesteps=num_timesteps), DiffusionSamplerConfig(num_sampling_steps=10)
    )
    process.loss(denoiser, x, Y, noise, u)
    last = num_timesteps - 1
    assert seen[0].tolist() == [0, 0, 1, num_timesteps // 2, last, last]
    assert seen[0].dtype == torch.int64


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_loss_is_never_less_than_float32(dtype: torch.dtype) -> None:
    x, noise, prediction = _inputs(dtype)

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        assert x_t.dtype == dtype
        return prediction

    loss = _process().loss(denoiser, x, Y, noise, _u(1, 10, 200, 400, 600, 999))
    assert loss.dtype == torch.promote_types(dtype, torch.float32)


def test_loss_is_float32_under_autocast() -> None:
    x, noise, _ = _inputs(torch.float32)
    network = nn.Conv2d(4, 8, 1)
    u = _u(1, 10, 200, 400, 600, 999)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert network(x).dtype == torch.bfloat16
        rounded = network(x).float()
        loss = _process().loss(lambda x_t, t, y: network(x), x, Y, noise, u)
    torch.testing.assert_close(loss, _process().loss(_answering(rounded), x, Y, noise, u))


def test_one_batch_can_be_learned() -> None:
    x, noise, _ = _inputs(torch.float32)
    network = nn.Sequential(nn.Flatten(), nn.Linear(60, 256), nn.SiLU(), nn.Linear(256, 120))
    optimizer = torch.optim.Adam(network.parameters(), lr=3e-3)
    process, u = _process(), _u(20, 100, 200, 400, 600, 999)

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        return network(x_t).reshape(-1, 8, 3, 5)

    losses = []
    for _ in range(200):
        loss = process.loss(denoiser, x, Y, noise, u).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 0.9
    assert losses[-1] < 0.02
