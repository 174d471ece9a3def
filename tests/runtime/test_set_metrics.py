"""Inception score, precision, recall and kernel distance on sets small enough to count by hand."""

import numpy as np
import pytest
import torch

from runtime import precision_recall as pr
from runtime.inception_score import consecutive_chunks, equal_splits, inception_score, shuffled
from runtime.kernel_distance import discrepancy, kernel_distance
from runtime.precision_recall import neighbour_radii, precision_recall, squared_distances

# --- Inception score ------------------------------------------------------------------------------


def sure_of(classes: torch.Tensor, num_classes: int) -> torch.Tensor:
    """Logits that leave other classes a probability of exactly zero."""
    return torch.nn.functional.one_hot(classes, num_classes).double().log()


def test_a_classifier_that_cannot_tell_scores_one() -> None:
    assert inception_score(torch.zeros(30, 5), [(0, 30)]) == pytest.approx((1.0, 0.0))


def test_sure_and_balanced_scores_the_number_of_classes() -> None:
    logits = sure_of(torch.arange(60) % 12, 12)
    assert inception_score(logits, [(0, 60)])[0] == pytest.approx(12.0)


def test_chunks_are_scored_apart_and_a_short_one_counts_in_full() -> None:
    logits = sure_of(torch.tensor([0, 1, 2, 3, 0]), 4)
    mean, spread = inception_score(logits, consecutive_chunks(5, 4))
    assert (mean, spread) == pytest.approx(((4 + 1) / 2, 1.5))


def test_chunks_cover_all_rows_once() -> None:
    assert consecutive_chunks(11, 5) == [(0, 5), (5, 10), (10, 11)]
    assert equal_splits(11, 3) == [(0, 3), (3, 7), (7, 11)]


def test_shuffling_keeps_the_rows() -> None:
    rows = torch.randn(20, 3)
    mixed = shuffled(rows)
    assert not torch.equal(mixed, rows)
    assert torch.equal(mixed.sort(dim=0).values, rows.sort(dim=0).values)


# --- precision and recall -------------------------------------------------------------------------


def on_a_line(*places: float) -> torch.Tensor:
    return torch.tensor(places, dtype=torch.float32)[:, None]


def test_radius_is_the_distance_to_the_third_other_point() -> None:
    radii = neighbour_radii(on_a_line(0, 1, 3, 6, 10), k=3)
    assert radii.tolist() == [36, 25, 9, 25, 81]


def test_precision_and_recall_by_hand() -> None:
    reference = on_a_line(0, 1, 2, 3)  # radii 3, 2, 2, 3: covers -3 to 6
    sample = on_a_line(6, 6.5, -3, 20, 21)  # radii 14, 13.5, 23, 14.5, 15
    precision, recall = precision_recall(sample, reference)
    assert precision == pytest.approx(2 / 5)  # 6 and -3, both on an edge
    assert recall == 1.0


def test_equal_points_with_radius_zero_are_covered() -> None:
    """Repeated features, at sizes where the sum of squares and products is not exactly zero."""
    rows = torch.rand(50, 2048) * 30
    assert squared_distances(rows.double(), rows.double()).diagonal().count_nonzero() == 0
    assert precision_recall(rows, rows.repeat(4, 1))[0] == 1.0
    assert precision_recall(rows + 1e-3, rows.repeat(4, 1))[0] == 0.0


def test_too_few_points_for_the_neighbours() -> None:
    with pytest.raises(ValueError, match="at least 4 points; there are 3"):
        precision_recall(torch.rand(9, 2), torch.rand(3, 2))


def test_blocks_do_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    sample, reference = torch.randn(50, 4), torch.randn(40, 4)
    whole = precision_recall(sample, reference), neighbour_radii(sample, k=3)
    monkeypatch.setattr(pr, "ROWS_AT_ONCE", 7)
    blocks = precision_recall(sample, reference), neighbour_radii(sample, k=3)
    assert blocks[0] == whole[0]
    assert torch.allclose(blocks[1], whole[1], rtol=1e-5)


def test_an_offset_leaves_precision_and_recall() -> None:
    sample, reference = torch.randn(200, 8).double(), torch.randn(150, 8).double() + 0.5
    far = 2.0**26  # squares of such numbers would leave no digit of a distance
    assert precision_recall(sample + far, reference + far) == precision_recall(sample, reference)


# --- kernel distance ------------------------------------------------------------------------------


def test_kernel_discrepancy_by_hand() -> None:
    """Points 0 and 1 against 2 and 3 on a line, kernel (x y + 1)^3."""
    x, y = np.array([[0.0], [1.0]]), np.array([[2.0], [3.0]])
    within = 1.0 + 7.0**3
    across = (1 + 1 + 27 + 64) / 4
    assert discrepancy(x, y) == pytest.approx(within - 2 * across)


def test_equal_distributions_have_no_kernel_distance_on_average() -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal((2000, 4)), random.standard_normal((2000, 4))
    mean, spread = kernel_distance(x, y, subset_size=400, num_subsets=20)
    assert abs(mean) < spread
    assert kernel_distance(x, y + 1, subset_size=400, num_subsets=20)[0] > 5 * spread


def test_a_subset_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="between 2 and 5 images, not 6"):
        kernel_distance(np.zeros((9, 2)), np.zeros((5, 2)), subset_size=6)
