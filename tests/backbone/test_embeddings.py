"""Patches, places, times and labels."""

import math

import pytest
import torch

from backbone.embeddings import (
    LabelEmbedding,
    PatchEmbedding,
    TimeEmbedding,
    position_table,
    time_sinusoid,
)


def test_patches_become_tokens_row_by_row() -> None:
    embedding = PatchEmbedding(in_channels=2, patch_size=2, dim=8)
    x = torch.zeros(1, 2, 4, 6)
    x[:, :, 2:4, 4:6] = 1.0  # the patch of row 1, column 2, of 2 x 3 patches
    changed = (embedding(x) - embedding(torch.zeros_like(x))).abs().sum(-1)[0]
    assert changed.nonzero().flatten().tolist() == [5]


def test_place_is_the_column_then_the_row() -> None:
    table = position_table((2, 3), 8)
    i, j, w = 1, 2, 10_000**-0.5
    expected = [f(p * v) for p in (j, i) for f in (math.sin, math.cos) for v in (1.0, w)]
    torch.testing.assert_close(table[i * 3 + j], torch.tensor(expected, dtype=torch.float64))


def test_places_of_a_smaller_grid_are_a_corner_of_the_larger() -> None:
    large = position_table((6, 5), 16).unflatten(0, (6, 5))
    assert torch.equal(position_table((2, 3), 16), large[:2, :3].flatten(0, 1))


@pytest.mark.parametrize("dim", [1, 7, 256])
def test_sinusoid_is_cosines_then_sines_then_zeros(dim: int) -> None:
    t = torch.tensor([0.0, 3.5])
    half = dim // 2
    f = torch.tensor([10_000 ** (-k / half) for k in range(half)])
    sinusoid = time_sinusoid(t, dim)
    assert sinusoid.shape == (2, dim)
    torch.testing.assert_close(sinusoid[:, :half], torch.cos(t[:, None] * f))
    torch.testing.assert_close(sinusoid[:, half : 2 * half], torch.sin(t[:, None] * f))
    assert not sinusoid[:, 2 * half :].any()


def test_time_scale_1000_moves_most_channels_of_the_sinusoid() -> None:
    early, late = time_sinusoid(torch.tensor([0.1, 0.9]) * 1000, 256)
    assert ((early - late).abs() > 0.01).float().mean() >= 0.5
    early, late = time_sinusoid(torch.tensor([0.1, 0.9]), 256)  # as published for SiT
    assert ((early - late).abs() > 0.01).float().mean() < 0.5


def test_embedded_times_differ_in_most_channels() -> None:
    embedding = TimeEmbedding(64, time_scale=1000.0)
    for linear in (embedding.mlp[0], embedding.mlp[2]):
        torch.nn.init.xavier_uniform_(linear.weight)
    early, late = embedding(torch.tensor([0.1, 0.9]))
    assert ((early - late).abs() > 0.01).float().mean() >= 0.5


def test_time_scale_multiplies_the_time() -> None:
    scaled, plain = TimeEmbedding(16, time_scale=1000.0), TimeEmbedding(16, time_scale=1.0)
    plain.load_state_dict(scaled.state_dict())
    torch.testing.assert_close(scaled(torch.tensor([0.25])), plain(torch.tensor([250])))


def test_autocast_leaves_the_time_in_float32() -> None:
    embedding, t = TimeEmbedding(16, time_scale=1.0), torch.tensor([998, 999])
    outside = embedding(t)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(embedding(t), outside)


def test_whole_and_real_times_are_the_same_times() -> None:
    embedding = TimeEmbedding(16, time_scale=1.0).double()
    whole = embedding(torch.tensor([0, 37, 999]))
    assert whole.dtype == torch.float64
    assert torch.equal(whole, embedding(torch.tensor([0.0, 37.0, 999.0])))


@pytest.mark.parametrize("num_classes", [1, 10])
def test_null_label_has_a_row_only_where_labels_are_dropped(num_classes: int) -> None:
    assert len(LabelEmbedding(num_classes, True, 8).embedding_table.weight) == num_classes + 1
    assert len(LabelEmbedding(num_classes, False, 8).embedding_table.weight) == num_classes
