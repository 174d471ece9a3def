"""Precision and recall: how much of each set lies within the other's neighbourhoods.

A set covers a point that is no farther from one of its members than this member's k-th nearest
other member is. Precision is the share of samples that the references cover, recall the share of
references that the samples cover. Source: Kynkaanniemi et al. 2019; ``<=`` and k = 3 as in the ADM
evaluator.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

ROWS_AT_ONCE = 4096  # of each set; a block of float64 distances takes 128 MiB


def precision_recall(
    sample: Float[Tensor, "samples dim"], reference: Float[Tensor, "references dim"], k: int = 3
) -> tuple[float, float]:
    """Distances are float64: single precision loses digits where the features have a common offset.

    Raises ValueError where a set has fewer than k + 1 points.
    """
    # Whole numbers, so that moving the origin rounds no coordinate and ties stay ties.
    origin = reference.double().mean(dim=0).round()
    sample, reference = sample.double() - origin, reference.double() - origin
    precision = covered(sample, reference, neighbour_radii(reference, k))
    recall = covered(reference, sample, neighbour_radii(sample, k))
    return float(precision.double().mean()), float(recall.double().mean())


def neighbour_radii(points: Float[Tensor, "points dim"], k: int) -> Float[Tensor, " points"]:
    """Squared distance of each point to its k-th nearest other point."""
    if len(points) < k + 1:
        raise ValueError(f"{k} neighbours need at least {k + 1} points; there are {len(points)}")
    radii = []
    for rows in points.split(ROWS_AT_ONCE):
        nearest = rows.new_empty(len(rows), 0)
        for columns in points.split(ROWS_AT_ONCE):
            nearest = torch.cat([nearest, squared_distances(rows, columns)], dim=1)
            nearest = nearest.topk(min(k + 1, nearest.shape[1]), largest=False).values
        radii.append(nearest.amax(dim=1))  # the point itself is the nearest of the k + 1
    return torch.cat(radii)


def covered(
    points: Float[Tensor, "points dim"],
    centres: Float[Tensor, "centres dim"],
    squared_radii: Float[Tensor, " centres"],
) -> Bool[Tensor, " points"]:
    """Whether each point lies within the radius of at least one centre."""
    inside = []
    for rows in points.split(ROWS_AT_ONCE):
        hits = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        for columns, radii in zip(
            centres.split(ROWS_AT_ONCE), squared_radii.split(ROWS_AT_ONCE), strict=True
        ):
            hits |= (squared_distances(rows, columns) <= radii).any(dim=1)
        inside.append(hits)
    return torch.cat(inside)


def squared_distances(
    rows: Float[Tensor, "rows dim"], columns: Float[Tensor, "columns dim"]
) -> Float[Tensor, "rows columns"]:
    """|u|^2 - 2 u.v + |v|^2 with round-off set to zero, so that equal points are at distance 0."""
    squares = rows.square().sum(dim=1)[:, None] + columns.square().sum(dim=1)
    distances = torch.addmm(squares, rows, columns.T, alpha=-2)
    round_off = 4 * rows.shape[1] * torch.finfo(rows.dtype).eps
    return torch.where(distances > round_off * squares, distances, 0.0)
