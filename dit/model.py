"""The network of DiT: noise, and by default a variance, from a latent at an integer timestep."""

from backbone.transformer import DiffusionTransformer


class DiT(DiffusionTransformer):
    """Published with ``learned_variance`` on and ``time_scale`` 1, for timesteps 0 to 999.

    Channels C to 2C - 1 of a prediction, where there are any, describe the variance.
    Source: Peebles and Xie 2023.
    """
