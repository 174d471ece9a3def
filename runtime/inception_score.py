"""Inception Score: how sure a classifier is of each image, and how varied it finds all of them.

    exp( mean KL(p(class | image) || p(class)) ) = exp( H(mean p) - mean H(p) ),

with the entropy H, where a probability of zero counts nothing. Between 1 and the number of
classes. Source: Salimans et al. 2016.
"""

from itertools import pairwise

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

Chunk = tuple[int, int]  # first row, one past the last


def consecutive_chunks(num_images: int, size: int) -> list[Chunk]:
    """Chunks of ``size`` rows, the last one possibly shorter: the rule of the ADM evaluator."""
    return [(start, min(start + size, num_images)) for start in range(0, num_images, size)]


def equal_splits(num_images: int, num_splits: int) -> list[Chunk]:
    """``num_splits`` parts as equal as possible: the rule of torch-fidelity."""
    edges = [i * num_images // num_splits for i in range(num_splits + 1)]
    return list(pairwise(edges))


def shuffled(
    rows: Float[Tensor, "rows classes"], seed: int = 2020
) -> Float[Tensor, "rows classes"]:
    """The rows in the random order that torch-fidelity scores them in by default."""
    return rows[np.random.RandomState(seed).permutation(len(rows))]


def inception_score(
    logits: Float[Tensor, "rows classes"], chunks: list[Chunk]
) -> tuple[float, float]:
    """Mean and population spread of the chunks' scores, in float64.

    The published Inception network's logits enter without the last layer's bias.
    """
    scores = torch.stack([_chunk_score(logits[start:stop]) for start, stop in chunks])
    return float(scores.mean()), float(scores.std(correction=0))


def _chunk_score(logits: Float[Tensor, "rows classes"]) -> Float[Tensor, ""]:
    p = logits.double().softmax(dim=1)
    entropy_of_mean = torch.special.entr(p.mean(dim=0)).sum()
    mean_entropy = torch.special.entr(p).sum(dim=1).mean()
    return (entropy_of_mean - mean_entropy).exp()
