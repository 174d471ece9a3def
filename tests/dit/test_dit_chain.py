"""The coefficients of a chain and of its variances, against Bayes' rule written out."""

import math

import pytest
import torch

from dit.chain import Chain
from dit.diffusion import DiffusionConfig, GaussianDiffusion
from dit.respacing import kept_timesteps
from dit.schedule import alpha_bars
from dit.variance import VARIANCES


def _chain(num_timesteps: int = 1000) -> Chain:
    return Chain(alpha_bars("linear", num_timesteps), torch.arange(num_timesteps))


def _bayes(signal: float, signal_before: float, x: float, x_t: float) -> tuple[float, float]:
    """Mean and variance of the earlier state given x_t and x, by products of Gaussian densities.

    The earlier state is N(sqrt(signal_before) x, 1 - signal_before), and x_t given the earlier
    state is N(r state, 1 - r^2), r^2 = signal / signal_before.
    """
    r, added = math.sqrt(signal / signal_before), 1 - signal / signal_before
    prior_precision, evidence_precision = 1 / (1 - signal_before), r**2 / added
    precision = prior_precision + evidence_precision
    mean = math.sqrt(signal_before) * x * prior_precision + r * x_t / added
    return mean / precision, 1 / precision


@pytest.mark.parametrize("num_steps", [10, 250, 1000])
def test_posterior_is_bayes_rule_also_where_steps_are_skipped(num_steps: int) -> None:
    full = _chain()
    kept = kept_timesteps(1000, num_steps)
    chain = full.respaced(kept)
    for k in (1, num_steps // 2, num_steps - 1):
        signal, before = float(full.alpha_bar[kept[k]]), float(full.alpha_bar[kept[k - 1]])
        mean, variance = _bayes(signal, before, x=1.3, x_t=-0.4)
        timestep, c = chain.at(k)
        assert timestep == kept[k]
        assert c.posterior_std.item() ** 2 == pytest.approx(variance, rel=1e-9)
        ours = c.posterior_x * 1.3 + c.posterior_x_t * -0.4
        assert ours.item() == pytest.approx(mean, rel=1e-9)


@pytest.mark.parametrize("num_steps", [10, 250, 1000])
def test_learned_range_interpolates_the_logarithms_at_skipped_steps(num_steps: int) -> None:
    full = _chain()
    kept = kept_timesteps(1000, num_steps)
    values = torch.tensor([-1.0, 0.2, 1.0, 1.8], dtype=torch.float64).reshape(1, 4, 1, 1)
    for k in (1, num_steps // 2, num_steps - 1):
        signal, before = float(full.alpha_bar[kept[k]]), float(full.alpha_bar[kept[k - 1]])
        high, (_, low) = 1 - signal / before, _bayes(signal, before, x=0.0, x_t=0.0)
        # On a logarithmic scale, and beyond the bounds where the values are beyond -1 and 1.
        expected = [low, high**0.6 * low**0.4, high, high**1.4 * low**-0.4]
        _, c = full.respaced(kept).at(k)
        ours = VARIANCES["learned_range"].log_variance(c, values).exp()
        assert ours.flatten().tolist() == pytest.approx(expected, rel=1e-9)


def test_fixed_variances_are_the_two_bounds() -> None:
    chain = _chain()
    for k in (1, 500, 999):
        _, c = chain.at(k)
        signal, before = float(chain.alpha_bar[k]), float(chain.alpha_bar[k - 1])
        large = VARIANCES["fixed_large"].log_variance(c, None)
        small = VARIANCES["fixed_small"].log_variance(c, None)
        assert large.exp().item() == pytest.approx(1 - signal / before, rel=1e-9)
        assert small.exp().item() == pytest.approx(_bayes(signal, before, 0.0, 0.0)[1], rel=1e-9)


def test_first_state_borrows_the_variance_of_the_second() -> None:
    chain = _chain()
    second = 2 * chain.tables.posterior_std[1].log()
    assert chain.tables.log_posterior[0] == pytest.approx(second)
    assert chain.tables.log_fixed_large[0] == pytest.approx(second)


def test_a_chain_of_one_state_is_finite() -> None:
    _, c = _chain().respaced([999]).at(0)
    assert all(torch.isfinite(number) for number in c)


def test_clean_and_noise_undo_noisy() -> None:
    x, noise = torch.randn(2, 3, 1, 4, 4, dtype=torch.float64)
    _, c = _chain().gather(torch.tensor([0, 500, 999]), torch.float64)
    x_t = c.noisy(x, noise)
    torch.testing.assert_close(c.clean(x_t, noise), x, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(c.noise(x_t, x), noise, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gathered_coefficients_have_the_dtype_asked_for(dtype: torch.dtype) -> None:
    timestep, c = _chain().gather(torch.tensor([3, 7]), dtype)
    assert timestep.dtype == torch.int64
    assert {table.dtype for table in c} == {dtype}
    assert {tuple(table.shape) for table in c} == {(2, 1, 1, 1)}


@pytest.mark.parametrize("setting", [{"schedule": "quadratic"}, {"variance": "learned"}])
def test_unknown_names_are_refused_with_the_known_ones(setting: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="there are: "):
        GaussianDiffusion(DiffusionConfig(**setting))
