"""Mean and covariance do not depend on how the rows come in, nor on a common offset."""

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.moments import BlockedMoments, Gaussian, Moments


def rows(n: int = 500, dim: int = 6, offset: float = 0.0) -> Tensor:
    mixing = torch.randn(dim, dim)
    return (torch.randn(n, dim) @ mixing).float() + offset


def relative(a: Tensor, b: Tensor) -> float:
    return float((a - b).abs().max() / b.abs().max())


def test_moments_are_those_of_numpy() -> None:
    x = rows()
    found = Moments.of(x).gaussian()
    assert relative(found.mean, x.double().mean(dim=0)) < 1e-14
    assert relative(found.covariance, torch.from_numpy(np.cov(x.double().numpy().T))) < 1e-13
    assert found.num_images == 500


@pytest.mark.parametrize("batch_size", [1, 7, 64, 500])
def test_batches_and_order_do_not_matter(batch_size: int) -> None:
    x = rows()
    shuffled = Moments.none(6)
    for batch in x[torch.randperm(len(x))].split(batch_size):
        shuffled.update(batch)
    whole = Moments.of(x).gaussian()
    assert relative(shuffled.gaussian().mean, whole.mean) < 1e-12
    assert relative(shuffled.gaussian().covariance, whole.covariance) < 1e-12


def test_blocks_of_small_batches_lose_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Moments, "ROWS_AT_ONCE", 32)
    x, blocked = rows(), BlockedMoments(6)
    for batch in x.split(7):
        blocked.update(batch)
        assert sum(map(len, blocked.waiting)) < 32
    found = blocked.total().gaussian()
    assert found.num_images == 500
    assert relative(found.covariance, Moments.of(x).gaussian().covariance) < 1e-12


def test_moments_of_parts_merge_to_those_of_all() -> None:
    x = rows()
    total = Moments.none(6)
    for part in (x[:3], x[3:3], x[3:120], x[120:]):  # one part is empty
        total.merge(Moments.of(part))
    assert total.count == 500
    assert relative(total.gaussian().covariance, Moments.of(x).gaussian().covariance) < 1e-12


def test_a_common_offset_costs_no_digits() -> None:
    x = rows(n=2000).double()
    moved = Moments.of(x + 1e4).gaussian()
    assert relative(moved.covariance, Moments.of(x).gaussian().covariance) < 1e-9


def test_rows_of_another_width_are_refused() -> None:
    moments = Moments.none(6)
    with pytest.raises(ValueError, match="5 columns instead of 6"):
        moments.update(torch.zeros(3, 5))


def test_a_feature_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Moments.of(torch.tensor([[0.0, float("nan")]]))


def test_one_row_has_no_covariance() -> None:
    with pytest.raises(ValueError, match="at least 2 images"):
        Moments.of(torch.zeros(1, 3)).gaussian()


def test_stored_moments_that_are_not_finite_are_refused() -> None:
    with pytest.raises(ValueError, match="not finite"):
        Gaussian(torch.tensor([0.0, float("inf")]), torch.eye(2), None)
