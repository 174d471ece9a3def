"""What a network costs: parameters, and multiply-accumulates per image."""

from dataclasses import dataclass

from torch import nn

from backbone.block import Block
from backbone.macs import AttentionMacs, CountsMacs
from backbone.transformer import DiffusionTransformer, token_grid


def count_parameters(network: nn.Module, trainable: bool = False) -> int:
    """All parameters, the frozen position table included, or the trainable ones alone."""
    return sum(p.numel() for p in network.parameters() if p.requires_grad or not trainable)


@dataclass(frozen=True)
class NetworkMacs:
    """Multiply-accumulates of one forward pass on one image, without guidance."""

    attention: AttentionMacs  # of all blocks
    mlp: int  # of all blocks
    ends: int  # patch embedding and last layer; a memory's start
    conditioning: int  # time MLP and modulations: independent of the number of tokens

    @property
    def blocks(self) -> int:
        return self.attention.total + self.mlp

    @property
    def fused_blocks(self) -> int:
        return self.attention.fused_total + self.mlp

    @property
    def total(self) -> int:
        return self.blocks + self.ends + self.conditioning

    @property
    def fused_total(self) -> int:
        return self.fused_blocks + self.ends + self.conditioning


def network_macs(
    network: DiffusionTransformer, latent_size: tuple[int, int] | None = None
) -> NetworkMacs:
    """Counts at ``latent_size``, or at the size that the network was built for."""
    config = network.config
    rows, columns = token_grid(latent_size or config.latent_size, config.patch_size)
    num_tokens = rows * columns
    blocks = [block for block in network.blocks if isinstance(block, Block)]
    layers = [block.attn for block in blocks if isinstance(block.attn, CountsMacs)]
    assert len(layers) == config.depth, "an attention layer does not count its macs"
    per_token = [m for block in blocks if block.mlp for m in (block.mlp.fc1, block.mlp.fc2)]
    ends: list[nn.Module] = [network.x_embedder.proj, network.final_layer.linear]
    ends += [network.memory_embedder] if network.memory_embedder else []
    conditioning = [network.t_embedder.mlp, network.final_layer.adaLN_modulation]
    conditioning += [block.adaLN_modulation for block in blocks]
    return NetworkMacs(
        attention=sum_macs([layer.macs(num_tokens) for layer in layers]),
        mlp=num_tokens * sum(map(_num_weights, per_token)),
        ends=num_tokens * sum(map(_num_weights, ends)),
        conditioning=sum(map(_num_weights, conditioning)),
    )


def sum_macs(layers: list[AttentionMacs]) -> AttentionMacs:
    return AttentionMacs(
        dense=sum(m.dense for m in layers),
        core=sum(m.core for m in layers),
        fused_core=sum(m.fused_core for m in layers),
        convolution=sum(m.convolution for m in layers),
    )


def _num_weights(module: nn.Module) -> int:
    """Entries of the matrices of ``module``: one multiply-accumulate each per use."""
    return sum(p.numel() for p in module.parameters() if p.ndim > 1)
