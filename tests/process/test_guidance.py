"""Guidance is null + scale (conditional - null), on the channels and times asked for."""

import pytest
import torch

from process.denoiser import CountingDenoiser
from process.guidance import GuidanceConfig, GuidedDenoiser, drop_labels

NULL = 10
CONDITIONAL = torch.randn(3, 8, 4, 4, generator=torch.Generator().manual_seed(1))
UNCONDITIONAL = torch.randn(3, 8, 4, 4, generator=torch.Generator().manual_seed(2))


def network(x_t, t, y):
    """Fixed predictions with a variance half: 4 latent channels, 8 predicted ones."""
    prediction = CONDITIONAL.repeat(len(x_t) // 3, 1, 1, 1)
    null = UNCONDITIONAL.repeat(len(x_t) // 3, 1, 1, 1)
    return torch.where((y == NULL)[:, None, None, None], null, prediction)


def guided(t=None, **settings):
    counter = CountingDenoiser(network)
    denoiser = GuidedDenoiser(counter, GuidanceConfig(**settings), NULL)
    t = torch.full((3,), 0.5) if t is None else t
    return denoiser(torch.zeros(3, 4, 4, 4), t, torch.tensor([1, 2, 3])), counter.num_evaluations


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.5, 4.0])
@pytest.mark.parametrize(("guided_channels", "channels"), [(None, 4), (3, 3), (1, 1)])
def test_prediction_is_null_plus_scale_times_difference(scale, guided_channels, channels):
    prediction, evaluations = guided(scale=scale, guided_channels=guided_channels)
    expected = UNCONDITIONAL + scale * (CONDITIONAL - UNCONDITIONAL)
    torch.testing.assert_close(prediction[:, :channels], expected[:, :channels])
    assert torch.equal(prediction[:, channels:], CONDITIONAL[:, channels:])
    assert evaluations == 6


def test_scale_1_is_the_conditional_network_at_one_evaluation_per_image():
    prediction, evaluations = guided(scale=1.0)
    assert torch.equal(prediction, CONDITIONAL)
    assert evaluations == 3


def test_outside_the_interval_nothing_is_guided_and_nothing_is_paid():
    prediction, evaluations = guided(scale=3.0, interval=(0.6, 1.0))
    assert torch.equal(prediction, CONDITIONAL)
    assert evaluations == 3


def test_the_interval_is_inclusive_and_applies_per_image():
    prediction, _ = guided(t=torch.tensor([0.0, 0.6, 1.0]), scale=3.0, interval=(0.6, 1.0))
    expected = (UNCONDITIONAL + 3 * (CONDITIONAL - UNCONDITIONAL))[:, :4]
    assert torch.equal(prediction[0], CONDITIONAL[0])
    torch.testing.assert_close(prediction[1:, :4], expected[1:])


def test_interval_of_integer_timesteps():
    prediction, _ = guided(t=torch.tensor([0, 500, 999]), scale=2.0, interval=(500.0, 999.0))
    assert torch.equal(prediction[0], CONDITIONAL[0])
    assert not torch.equal(prediction[1], CONDITIONAL[1])


def test_more_guided_channels_than_there_are_is_an_error():
    with pytest.raises(ValueError, match=r"guided_channels = 5.*4 channels"):
        guided(scale=2.0, guided_channels=5)


def test_labels_are_dropped_strictly_below_the_probability():
    y, u = torch.tensor([1, 2, 3, 4]), torch.tensor([0.0, 0.0999, 0.1, 0.9])
    assert drop_labels(y, u, 0.1, NULL).tolist() == [NULL, NULL, 3, 4]
    assert drop_labels(y, u, 0.0, NULL).tolist() == y.tolist()
