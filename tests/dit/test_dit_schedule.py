"""Noise schedules, for chains of any length, and the timesteps that a sampler keeps."""

import math
from itertools import pairwise

import pytest
import torch

from dit.respacing import kept_timesteps
from dit.schedule import SCHEDULES, alpha_bars, linear_betas


def test_linear_betas_are_the_usual_ones_for_a_thousand_timesteps() -> None:
    betas = linear_betas(1000)
    assert betas.dtype == torch.float64
    assert betas[0].item() == pytest.approx(1e-4, rel=1e-12)
    assert betas[-1].item() == pytest.approx(0.02, rel=1e-12)


@pytest.mark.parametrize("num_timesteps", [100, 300, 4000])
def test_linear_betas_scale_with_the_length_of_the_chain(num_timesteps: int) -> None:
    betas = linear_betas(num_timesteps)
    assert betas[0].item() == pytest.approx(0.1 / num_timesteps, rel=1e-12)
    assert betas[-1].item() == pytest.approx(20 / num_timesteps, rel=1e-12)


@pytest.mark.parametrize("num_timesteps", [100, 300, 4000])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_chain_of_any_length_ends_in_nearly_pure_noise(schedule: str, num_timesteps: int) -> None:
    usual, other = alpha_bars(schedule, 1000), alpha_bars(schedule, num_timesteps)
    assert other[-1] < 1e-4
    middle = other[num_timesteps // 2].item()
    assert middle == pytest.approx(usual[500].item(), rel=0.2)


def test_cosine_schedule_follows_its_closed_form() -> None:
    def signal(u: float) -> float:
        return math.cos(math.pi / 2 * (u + 0.008) / 1.008) ** 2

    alpha_bar = alpha_bars("cosine", 500)
    for i in (0, 100, 498):
        assert alpha_bar[i].item() == pytest.approx(signal((i + 1) / 500) / signal(0), rel=1e-9)
    assert (alpha_bar[-1] / alpha_bar[-2]).item() == pytest.approx(1 - 0.999, rel=1e-9)


def test_a_chain_too_short_for_the_linear_schedule_is_refused() -> None:
    with pytest.raises(ValueError, match="above 20, not 20"):
        alpha_bars("linear", 20)


def test_an_unknown_schedule_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'quadratic'.*cosine, linear"):
        alpha_bars("quadratic", 1000)


@pytest.mark.parametrize("num_steps", [2, 10, 50, 250, 999, 1000])
def test_even_spacing_goes_from_the_last_timestep_to_zero(num_steps: int) -> None:
    kept = kept_timesteps(1000, num_steps)
    assert len(kept) == num_steps
    assert (kept[0], kept[-1]) == (0, 999)
    gaps = {later - earlier for earlier, later in pairwise(kept)}
    assert max(gaps) - min(gaps) <= 1


def test_as_many_steps_as_timesteps_keep_all_of_them() -> None:
    assert kept_timesteps(300, 300) == list(range(300))
    assert kept_timesteps(300, 300, "ddim") == list(range(300))
    assert kept_timesteps(300, 300, "100,100,100") == list(range(300))


def test_sections_are_spaced_one_by_one() -> None:
    kept = kept_timesteps(11, 6, "3,2,1")  # sections of 4, 4 and 3 timesteps
    assert kept == [0, 2, 3, 4, 7, 8]


def test_ddim_spacing_is_one_stride_from_zero() -> None:
    assert kept_timesteps(1000, 4, "ddim") == [0, 250, 500, 750]


@pytest.mark.parametrize(
    ("num_steps", "spacing", "message"),
    [
        (1001, "even", "1001 .*1000"),
        (0, "even", "num_sampling_steps = 0"),
        (73, "ddim", "73 steps"),
        (45, "10,15,30", "55 steps.*45"),
        (502, "501,1", "501 steps .* 500"),
        (10, "uneven", "'uneven'.*even, ddim"),
        (10, "10,", "even, ddim"),
        (10, "12,-2", "even, ddim"),
    ],
)
def test_impossible_spacings_are_refused(num_steps: int, spacing: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        kept_timesteps(1000, num_steps, spacing)
