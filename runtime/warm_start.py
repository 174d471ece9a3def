"""Starting a run from the weights of another: fine-tuning to other classes, sizes or attention.

Whatever has the name and the shape of ours is taken over. The class table is the exception: its
rows belong to the classes of the data that they were trained on. They are taken over where the
class names are the same, in the same order, and start afresh otherwise; the vector of the empty
class, last in both tables, means the same to all data and is taken over in any case. The average
starts from the weights taken over, the optimizer and the step count from nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from runtime.errors import UserError

CLASS_TABLE = "y_embedder.embedding_table.weight"
SQUARE = "t_embedder.mlp.2.weight"  # width x width, in every network


@dataclass(frozen=True)
class Classes:
    """What the rows of a class table stand for."""

    names: tuple[str, ...]
    has_null_label: bool  # the last row is that of no class


@dataclass(frozen=True)
class TakenOver:
    """What became of the weights: ``not_loaded`` are ours, ``unused`` those of the other run."""

    loaded: list[str]
    not_loaded: dict[str, str]  # names with reasons
    unused: list[str]

    def __str__(self) -> str:
        total = len(self.loaded) + len(self.not_loaded)
        lines = [f"{len(self.loaded)} of {total} tensors are taken over"]
        lines += [f"not loaded: {name} ({why})" for name, why in self.not_loaded.items()]
        lines += [f"not used: {name}" for name in self.unused]
        return "\n".join(lines)


@torch.no_grad()
def take_over(
    network: nn.Module, weights: Mapping[str, Tensor], ours: Classes, theirs: Classes
) -> TakenOver:
    """Copies into ``network`` what fits; frozen tables follow from the config and stay.

    Raises :class:`UserError` for weights of another width, of which next to nothing would fit.
    """
    frozen = {name for name, p in network.named_parameters() if not p.requires_grad}
    own = {name: t for name, t in network.state_dict().items() if name not in frozen}
    misfit = _mismatch(own[SQUARE], weights.get(SQUARE))
    if misfit is not None:
        raise UserError(f"the weights are of another network: {SQUARE} {misfit}")
    not_loaded: dict[str, str] = {}
    for name, tensor in own.items():
        reason = _mismatch(tensor, weights.get(name))
        if name == CLASS_TABLE and name in weights:
            reason = _take_over_classes(tensor, weights[name], ours, theirs)
        elif reason is None:
            tensor.copy_(weights[name])
        if reason is not None:
            not_loaded[name] = reason
    loaded = [name for name in own if name not in not_loaded]
    return TakenOver(loaded, not_loaded, sorted(weights.keys() - own.keys() - frozen))


def _mismatch(ours: Tensor, theirs: Tensor | None) -> str | None:
    if theirs is None:
        return "is not in the checkpoint"
    if ours.shape != theirs.shape:
        return f"has shape {tuple(ours.shape)}, in the checkpoint {tuple(theirs.shape)}"
    return None


def _take_over_classes(table: Tensor, other: Tensor, ours: Classes, theirs: Classes) -> str | None:
    """Fills a class table as far as the classes are the same; says what starts afresh."""
    assert len(table) == len(ours.names) + ours.has_null_label
    if table.shape[1:] != other.shape[1:]:
        return _mismatch(table, other)
    afresh = []
    if ours.names == theirs.names:
        table[: len(ours.names)] = other[: len(ours.names)]
    else:
        afresh.append(f"{len(ours.names)} classes in the place of {len(theirs.names)}")
    if ours.has_null_label and theirs.has_null_label:
        table[-1] = other[-1]
    elif ours.has_null_label:
        afresh.append("the empty class, which the checkpoint lacks")
    if not afresh:
        return None
    kept = "; the empty class is kept" if ours.has_null_label and theirs.has_null_label else ""
    return f"begins afresh: {', '.join(afresh)}{kept}"
