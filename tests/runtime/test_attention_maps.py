"""Maps are those of the token that was asked for, and pictures show them as they are."""

import itertools

import numpy as np
import pytest
import torch
from torch import nn

from backbone.pooling import pool_grid
from backbone.site import AttentionSite
from runtime.attention_inputs import CallRecorder
from runtime.attention_maps import HeadMaps, cell, head_maps, pooled_box
from runtime.build import build_network
from runtime.factory import ATTENTIONS
from runtime.map_sheet import Heading, colours, draw_sheet
from runtime.training_config import TrainConfig

GRID, POOLED = (3, 5), (2, 2)  # no box divides it
SITE = AttentionSite(dim=16, num_heads=2, grid=GRID, block_index=1)
QUERIES = list(itertools.product(range(3), range(5)))


def layer(name: str, **settings: object) -> nn.Module:
    entry = ATTENTIONS[name]
    return entry.layer(entry.config(**settings), SITE)


@pytest.mark.parametrize("query", [(0, 0), (1, 3), (2, 4)])
def test_maps_are_rows_of_the_layers_own(query: tuple[int, int]) -> None:
    inputs = torch.randn(2, 15, 16), GRID
    token = query[0] * 5 + query[1]
    softmax, vca = layer("softmax"), layer("vca", pooled_grid=POOLED)
    found = head_maps(softmax, inputs, GRID, query)["softmax"].heads
    assert found.flatten(1).equal(softmax.maps(*inputs)[0, :, token])
    maps, ours = vca.maps(*inputs), head_maps(vca, inputs, GRID, query)
    assert list(ours) == ["stage1", "importance", "stage2"]
    assert ours["stage2"].heads.flatten(1).equal(maps.stage2.signed[0, :, token])
    top, left, _, _ = ours["stage2"].marked
    assert ours["stage1"].heads.flatten(1).equal(maps.stage1.signed[0, :, top * 2 + left])
    expected = torch.stack([maps.stage1.signed[0, :, i] for i in range(4)]).mean(dim=0)
    torch.testing.assert_close(ours["importance"].heads.flatten(1), expected)


@pytest.mark.parametrize("query", QUERIES)
def test_the_contrast_token_that_asks_pools_the_query(query: tuple[int, int]) -> None:
    maps = head_maps(layer("vca", pooled_grid=POOLED), (torch.randn(1, 15, 16), GRID), GRID, query)
    alone = torch.zeros(1, 15, 1)
    alone[0, query[0] * 5 + query[1]] = 1
    row, column, _, _ = maps["stage2"].marked
    assert pool_grid(alone, GRID, 0, POOLED)[0, row * 2 + column] > 0
    top, left, bottom, right = maps["stage1"].marked
    assert top <= query[0] < bottom and left <= query[1] < right


@pytest.mark.parametrize("place", list(itertools.product(range(2), range(2))))
def test_the_box_of_a_contrast_token_is_what_it_pools(place: tuple[int, int]) -> None:
    every = torch.eye(15).unsqueeze(0)  # each token its own channel
    pooled = pool_grid(every, GRID, 0, POOLED)[0, place[0] * 2 + place[1]].unflatten(0, GRID)
    top, left, bottom, right = pooled_box(place, GRID, POOLED)
    inside = torch.zeros(GRID, dtype=torch.bool)
    inside[top:bottom, left:right] = True
    assert (pooled > 0).equal(inside)


@pytest.mark.parametrize("name", [n for n in ATTENTIONS if n not in ("softmax", "vca")])
def test_other_layers_say_which_have_maps(name: str) -> None:
    with pytest.raises(ValueError, match="has no maps; softmax and vca have"):
        head_maps(layer(name), (torch.randn(1, 15, 16), GRID), GRID, (0, 0))


def test_red_is_attention_and_blue_is_subtracted() -> None:
    pixels = colours(torch.tensor([[0.5, -0.25], [0.0, -0.5]]), 2)
    assert pixels.shape == (4, 4, 3)
    assert pixels[0, 0].tolist() == pixels[1, 1].tolist() == [255, 0, 0]
    assert pixels[0, 2].tolist() == [128, 128, 255]
    assert pixels[2, 0].tolist() == [255, 255, 255]
    assert pixels[3, 3].tolist() == [0, 0, 255]


def test_a_sheet_holds_every_map_and_grows_by_blocks_and_heads() -> None:
    def sheet(blocks: int, heads: int) -> np.ndarray:
        picture = np.full((8, 8, 3), 128, dtype=np.uint8)
        heading = Heading(("Title",), {"in the end": picture}, GRID, cell((1, 2)))
        maps = [HeadMaps(torch.zeros(heads, *GRID), cell((1, 2))) for _ in range(blocks)]
        maps[-1].heads[heads - 1, 0, 0] = 1.0
        return np.asarray(draw_sheet(heading, maps, 60))

    def reds(pixels: np.ndarray) -> int:
        return int((pixels == [255, 0, 0]).all(axis=-1)[160:].sum())

    assert sheet(3, 2).shape[0] > sheet(2, 2).shape[0]
    assert sheet(2, 9).shape[1] > sheet(2, 8).shape[1]
    assert reds(sheet(2, 2)) == 2 * 12**2  # one cell of the head and one of the mean


def test_a_recorder_keeps_one_call_and_leaves_no_hook() -> None:
    network = build_network(TrainConfig(model="DiT-XXS/2", attention="vca", image_size=64))
    recorder = CallRecorder(call=1)
    inputs = [torch.randn(1, 4, 8, 8) for _ in range(3)]
    with recorder.on(network):
        for x_t in inputs:
            network(x_t, torch.tensor([5]), torch.tensor([0]))
    assert recorder.num_calls == 3
    assert recorder.network_inputs[0] is inputs[1]
    assert len(recorder.inputs) == len(network.blocks)
    assert not any(module._forward_pre_hooks for module in network.modules())
