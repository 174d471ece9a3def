"""Root-mean-square norms and the learned weight of a subtracted map."""

import math

import pytest
import torch

from backbone.contrast import LambdaWeights, lambda_init
from backbone.norms import HeadNorm, RMSNorm


def test_lambda_starts_higher_in_deeper_blocks() -> None:
    starts = [lambda_init(i) for i in range(28)]
    assert starts[0] == pytest.approx(0.2)
    assert starts == sorted(starts)
    assert starts[-1] < 0.8 < starts[-1] + 0.001


def test_lambda_is_the_difference_of_exponentials_plus_its_start() -> None:
    weights = LambdaWeights(8, block_index=3, std=0.5).double()
    first = torch.dot(weights.q1, weights.k1).item()
    second = torch.dot(weights.q2, weights.k2).item()
    expected = math.exp(first) - math.exp(second) + lambda_init(3)
    assert weights().item() == pytest.approx(expected, abs=1e-12)
    assert weights().ndim == 0


def test_lambda_is_float32_under_autocast() -> None:
    weights = LambdaWeights(64, block_index=0, std=0.3)
    outside = weights()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = weights()
    assert inside.dtype == torch.float32
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_norm_of_large_activations_is_float32_and_finite(dtype: torch.dtype) -> None:
    u = torch.randn(4, 8, dtype=dtype) * 1e4
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed = RMSNorm(8, eps=1e-5)(u)
    assert normed.dtype == torch.float32
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(4))


def test_norm_divides_by_the_root_mean_square() -> None:
    norm = RMSNorm(8, eps=0.1).double()
    torch.nn.init.normal_(norm.weight)
    u = torch.randn(2, 3, 8, dtype=torch.float64)
    expected = u / (u.square().mean(-1, keepdim=True) + 0.1).sqrt() * norm.weight
    torch.testing.assert_close(norm(u), expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("subtracts", [True, False])
def test_gradients_of_the_norm_are_those_of_its_formula(affine: bool, subtracts: bool) -> None:
    """First and second derivatives, against finite differences."""
    norm = RMSNorm(4, eps=0.1, affine=affine).double()
    inputs = [torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True)]
    if subtracts:
        inputs += [torch.randn_like(inputs[0]).requires_grad_()]
        inputs += [torch.tensor(0.7, dtype=torch.float64, requires_grad=True)]

    def apply(*tensors: torch.Tensor) -> torch.Tensor:
        u, *subtracted = tensors[: len(inputs)]
        return norm(u, *subtracted, scale=0.6)

    everything = (*inputs, *norm.parameters())
    assert torch.autograd.gradcheck(apply, everything)
    assert torch.autograd.gradgradcheck(apply, everything)


def test_norm_saves_what_it_was_given_and_no_more() -> None:
    saved: list[torch.Tensor] = []
    u, negative = (torch.randn(2, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))

    def remember(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(remember, lambda tensor: tensor):
        RMSNorm(8, eps=1e-5)(u, negative, torch.tensor(0.5), dtype=torch.bfloat16)
    wide = [tensor for tensor in saved if tensor.shape == u.shape]
    assert {t.data_ptr() for t in wide} == {u.data_ptr(), negative.data_ptr()}


def test_norm_without_gain_owns_no_parameter() -> None:
    assert list(RMSNorm(8, eps=1e-5, affine=False).parameters()) == []


def test_head_norm_norms_each_head_and_keeps_the_dtype() -> None:
    tokens = torch.randn(2, 5, 12, dtype=torch.bfloat16)
    normed = HeadNorm(4, eps=1e-6)(tokens)
    assert normed.dtype == torch.bfloat16
    mean_squares = normed.float().unflatten(-1, (3, 4)).square().mean(-1)
    torch.testing.assert_close(mean_squares, torch.ones(2, 5, 3), rtol=0.02, atol=0)
