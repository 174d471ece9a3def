"""Initial values of the published networks.

Linear maps are Xavier-uniform with zero biases, the fused qkv matrix as one matrix. So is the
patch embedding, seen as a matrix. The label table and both maps of the time MLP are N(0, 0.02^2).
Modulations and the last linear map are zero: every block starts as the identity and the first
prediction is exactly zero. What is no linear map starts as its attention layer made it.
"""

from torch import nn


def xavier(network: nn.Module) -> None:
    """Xavier-uniform weights and zero biases in every linear map of ``network``."""
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            zero_bias(module)


def normal(linear: nn.Linear) -> None:
    nn.init.normal_(linear.weight, std=0.02)
    zero_bias(linear)


def zero(linear: nn.Linear) -> None:
    nn.init.zeros_(linear.weight)
    zero_bias(linear)


def zero_bias(linear: nn.Linear | nn.Conv2d) -> None:
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)
