"""The network of SiT: a velocity, score or noise from a latent at a time in [0, 1]."""

from collections.abc import Mapping

from jaxtyping import Float, Int, Shaped
from torch import Tensor

from backbone.transformer import DiffusionTransformer, TransformerConfig

LAST_LAYER = ("final_layer.linear.weight", "final_layer.linear.bias")


class SiT(DiffusionTransformer):
    """The same transformer; a ``time_scale`` of 1000 makes its time embedding informative.

    SiT was published with ``time_scale`` 1, and with the variance channels of DiT
    (``learned_variance``), which nothing trains or reads: they are computed and cut off here.
    Source: Ma et al. 2024.
    """

    def forward(
        self,
        x_t: Float[Tensor, "batch channels height width"],
        t: Shaped[Tensor, " batch"],
        y: Int[Tensor, " batch"],
    ) -> Float[Tensor, "batch channels height width"]:
        return super().forward(x_t, t, y)[:, : self.config.in_channels]


def without_unused_half(
    state: Mapping[str, Tensor], config: TransformerConfig
) -> tuple[dict[str, Tensor], list[str]]:
    """Weights that fit ``config``, and what there is to say about the change.

    A published SiT file has twice the output channels. Where ``config`` has not, the half that
    nobody reads is dropped. Other weights are returned as they are.
    """
    state = dict(state)
    kept, published = config.in_channels, 2 * config.in_channels
    num_pixels = config.patch_size**2
    if config.learned_variance or len(state[LAST_LAYER[0]]) != num_pixels * published:
        return state, []
    for name in LAST_LAYER:
        # Rows are ordered patch row, patch column, channel.
        channels = state[name].unflatten(0, (num_pixels, published))
        state[name] = channels[:, :kept].flatten(0, 1).contiguous()
    return state, [
        f"dropped output channels {kept} to {published - 1}, which the published SiT never uses"
    ]
