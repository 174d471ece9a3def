"""What enters the attention layers of a network, seen from outside while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import nn

from backbone.transformer import DiffusionTransformer

Inputs = tuple[Any, ...]  # of one call of an attention layer: tokens, grid and more
Watch = Callable[[int, nn.Module, Inputs], None]


@contextmanager
def watching(network: DiffusionTransformer, watch: Watch) -> Iterator[None]:
    """Inside, ``watch(block, attention, inputs)`` is called before each attention layer.

    Nothing stays behind in the network.
    """
    layers = [block.get_submodule("attn") for block in network.blocks]
    hooks = [
        layer.register_forward_pre_hook(partial(watch, block)) for block, layer in enumerate(layers)
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


class CallRecorder:
    """Keeps what enters network and attention layers in network call ``call``, counted from 0."""

    def __init__(self, call: int) -> None:
        self.call = call
        self.num_calls = 0
        self.network_inputs: Inputs = ()  # x_t, t, y
        self.inputs: list[Inputs] = []  # of the attention layers, block by block

    @contextmanager
    def on(self, network: DiffusionTransformer) -> Iterator[None]:
        hook = network.register_forward_pre_hook(self._begin)
        try:
            with watching(network, self._keep):
                yield
        finally:
            hook.remove()

    def _begin(self, network: nn.Module, inputs: Inputs) -> None:
        if self.num_calls == self.call:
            self.network_inputs = inputs
        self.num_calls += 1

    def _keep(self, block: int, attention: nn.Module, inputs: Inputs) -> None:
        if self.num_calls == self.call + 1:
            self.inputs.append(inputs)
