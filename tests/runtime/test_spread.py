"""Latents that are spread too little or too much are measured and named."""

from dataclasses import replace
from typing import Any

import pytest

from runtime.latents import LatentDataset
from runtime.spread import Spread, measure, spread_warning


def test_measure_agrees_with_the_passport(make_latents: Any) -> None:
    dataset = LatentDataset(make_latents(log_variance=-30.0))
    spread = measure(dataset, seed=0)
    assert spread.mean == pytest.approx(dataset.passport.mean, abs=1e-5)
    assert spread.std == pytest.approx(dataset.passport.std, rel=0.01)


def test_measure_knows_the_channels(make_latents: Any) -> None:
    """A scaling per channel that was measured on these latents evens them out."""
    even = LatentDataset(make_latents("even", log_variance=-30.0, scaling=None))
    assert measure(even, seed=0).channel_stds == pytest.approx((1, 1), rel=0.01)
    scaling = replace(even.scaling, std=(even.scaling.std[0], 10 * even.scaling.std[1]))
    uneven = LatentDataset(make_latents("uneven", log_variance=-30.0, scaling=scaling))
    assert measure(uneven, seed=0).channel_stds == pytest.approx((1, 0.1), rel=0.01)


def test_warning_names_the_spread() -> None:
    assert spread_warning(Spread(0.0, 1.0, (0.5, 1.0, 2.0))) is None
    for std in (0.18, 5.5):
        message = spread_warning(Spread(0.0, std, (1.0, 1.0)))
        assert message is not None and str(std) in message


def test_warning_names_the_channel() -> None:
    for std in (0.18, 5.5):
        message = spread_warning(Spread(0.0, 1.0, (1.0, std, 1.0)))
        assert message is not None and "1 of 3 channels" in message
        assert f"channel 1 of the latents has a standard deviation of {std}" in message
