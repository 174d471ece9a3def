"""The error of the cast is that of every stored version's means, channel by channel."""

import json

import numpy as np
import torch

from runtime.shard_notes import CastError, ShardNotes, SkippedImage, cast_error


def test_every_version_counts_and_means_alone() -> None:
    versions = [torch.randn(3, 4, 2, 5), 100 * torch.randn(3, 4, 2, 5), torch.randn(3, 4, 2, 5)]
    stored = [version.to(torch.float16) for version in versions]
    found = cast_error(versions, stored, num_channels=2)
    moved = (torch.stack(stored).double() - torch.stack(versions).double())[:, :, :2]
    np.testing.assert_allclose(found.largest, moved.abs().amax((0, 1, 3, 4)), rtol=1e-6)
    np.testing.assert_allclose(found.square_sums, moved.square().sum((0, 1, 3, 4)), rtol=1e-6)
    assert cast_error(versions, versions, 2) == CastError((0.0, 0.0), (0.0, 0.0))


def test_a_shard_without_records_has_no_error() -> None:
    nothing = torch.zeros(0, 4, 2, 5)
    assert cast_error([nothing], [nothing.half()], 2) == CastError((0.0, 0.0), (0.0, 0.0))


def test_json_round_trip_is_exact() -> None:
    notes = ShardNotes(CastError((1 / 3, 0.0), (2 / 7, 1e-30)), (SkippedImage(3, 1, "ü", "x"),))
    assert ShardNotes.from_json(json.loads(json.dumps(notes.to_json()))) == notes
