"""The running average of the weights, which is what samples are drawn from.

After optimizer step k, counted from 1:

    average <- decay_k average + (1 - decay_k) weights,    decay_k = min(decay, (1 + k) / (10 + k)).

The warm-up lets the average forget the initial weights in short runs; the published recipe keeps
the decay constant (``warmup=False``). The average is float32 whatever the weights are, and covers
trainable parameters only: frozen tables would drift by round-off.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class EmaConfig:
    decay: float = field(default=0.9999, metadata={"min": 0, "below": 1, "help": "per step"})
    warmup: bool = field(
        default=True, metadata={"help": "decay min(decay, (1 + k) / (10 + k)) at update k"}
    )


class Ema:
    """Averages the trainable parameters of ``model``, one update per optimizer step."""

    def __init__(self, model: nn.Module, config: EmaConfig) -> None:
        self.config = config
        self.num_updates = 0
        self.average = {
            name: parameter.detach().float().clone() for name, parameter in _trainable(model)
        }

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.num_updates += 1
        weights = [parameter.detach().float() for _, parameter in _trainable(model)]
        torch._foreach_lerp_(
            list(self.average.values()), weights, 1 - decay_at(self.config, self.num_updates)
        )

    def state_dict(self, model: nn.Module) -> dict[str, Tensor]:
        """The averaged weights together with the frozen tensors of ``model``: a full state dict."""
        return {name: self.average.get(name, value) for name, value in model.state_dict().items()}

    def load(self, weights: Mapping[str, Tensor], num_updates: int) -> None:
        """Takes over an average saved earlier.

        Raises a ``KeyError`` that names the first missing parameter.
        """
        for name, average in self.average.items():
            average.copy_(weights[name])
        self.num_updates = num_updates


def decay_at(config: EmaConfig, update: int) -> float:
    """The decay of an update, counted from 1."""
    if not config.warmup:
        return config.decay
    return min(config.decay, (1 + update) / (10 + update))


def initial_share(config: EmaConfig, num_updates: int) -> float:
    """The share that the initial weights still have in the average: the product of all decays."""
    if not config.warmup:
        return config.decay**num_updates
    share = 1.0
    for update in range(1, num_updates + 1):
        share *= decay_at(config, update)
        if share < 1e-6:
            return 0.0
    return share


def _trainable(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    return ((name, p) for name, p in model.named_parameters() if p.requires_grad)
