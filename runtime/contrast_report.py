"""Numbers that tell how layers that subtract attention are doing.

Lambda of every stage; and for Visual-Contrast Attention, from the maps of one call, per stage:

    weight_min, _mean, _max        entries of the signed map B+ - lambda B-
    positive_rms, negative_rms     what each bank reads, before lambda, difference and norm
    difference_rms                 what the norm is given: positive - lambda negative
    kept                           difference_rms over what unrelated readings would leave,
                                   sqrt(positive_rms^2 + (lambda negative_rms)^2): 0 cancels,
                                   1 is unrelated, above 1 adds
    output_rms                     after norm and factor
    positive_share (stage II)      mean mass of the positive bank in one softmax over both

How to read them: docs/attention.md.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from backbone.contrast import LambdaWeights
from backbone.norms import wide_dtype
from backbone.transformer import DiffusionTransformer
from runtime.attention_inputs import Inputs
from vca.attention import VisualContrastAttention
from vca.maps import StageMaps

BlockReport = dict[str, dict[str, float]]  # stage, quantity


def lambdas(attention: nn.Module) -> dict[str, LambdaWeights]:
    """The learned weights of a layer, by what they belong to: ``stage1``, ``stage2``, ``heads``."""
    return {
        path.rpartition(".")[0]: module
        for path, module in attention.named_modules()
        if isinstance(module, LambdaWeights)
    }


def has_contrast(network: DiffusionTransformer) -> bool:
    return any(lambdas(block.get_submodule("attn")) for block in network.blocks)


def report_lambdas(attention: nn.Module) -> BlockReport:
    return {
        stage: {"lambda": weights().item(), "lambda_init": weights.start}
        for stage, weights in lambdas(attention).items()
    }


def report_block(attention: nn.Module, inputs: Inputs) -> BlockReport:
    """All that is known of a layer; ``inputs`` are those of one call of it.

    Layers other than Visual-Contrast Attention have no maps to measure, only their lambdas.
    """
    report = report_lambdas(attention)
    if isinstance(attention, VisualContrastAttention):
        maps = attention.maps(*inputs)
        values = maps.values.to(maps.v.dtype)
        for name, measured in (
            ("stage1", _measure(maps.stage1, maps.v, maps.values)),
            ("stage2", _measure(maps.stage2, values, maps.read)),
        ):
            numbers = {quantity: number.item() for quantity, number in measured.items()}
            report[name] = report.get(name, {}) | numbers
    return report


def _measure(
    stage: StageMaps,
    values: Float[Tensor, "batch heads keys head_dim"],
    output: Float[Tensor, "batch heads queries head_dim"],
) -> dict[str, Float[Tensor, ""]]:
    signed = stage.signed
    numbers = {
        "weight_min": signed.min(),
        "weight_mean": signed.mean(),
        "weight_max": signed.max(),
        "output_rms": _rms(output),
    }
    positive, negative = stage.reads(values)
    if negative is None or stage.weight is None:
        return numbers
    subtracted = stage.weight * _wide(negative)
    difference_rms = _rms(_wide(positive) - subtracted)
    numbers |= {
        "positive_rms": _rms(positive),
        "negative_rms": _rms(negative),
        "difference_rms": difference_rms,
        "kept": difference_rms / torch.hypot(_rms(positive), _rms(subtracted)),
    }
    if stage.positive_share is not None:
        numbers["positive_share"] = stage.positive_share.mean()
    return numbers


def _wide(x: Float[Tensor, "*axes"]) -> Float[Tensor, "*axes"]:
    return x.to(wide_dtype(x))


def _rms(x: Float[Tensor, "*axes"]) -> Float[Tensor, ""]:
    return _wide(x).square().mean().sqrt()


def summary(blocks: dict[str, BlockReport]) -> str:
    """One line over all blocks."""
    stages = [numbers for block in blocks.values() for numbers in block.values()]
    found = [numbers["lambda"] for numbers in stages if "lambda" in numbers]
    moved = max(abs(n["lambda"] - n["lambda_init"]) for n in stages if "lambda" in n)
    line = (
        f"lambda {min(found):.3f} to {max(found):.3f}, mean {sum(found) / len(found):.3f}, "
        f"at most {moved:.3f} from lambda_init"
    )
    shares = [numbers["positive_share"] for numbers in stages if "positive_share" in numbers]
    return f"{line}; positive share {sum(shares) / len(shares):.3f}" if shares else line


COLUMNS = {
    "lambda": "lambda", "lambda_init": "init", "weight_min": "min", "weight_mean": "mean",
    "weight_max": "max", "difference_rms": "difference", "kept": "kept",
    "positive_share": "positive share",
}  # fmt: skip


def table(blocks: dict[str, BlockReport]) -> str:
    """A line per block and stage."""
    lines = [f"{'':16}" + "".join(f"{title:>{_width(title)}}" for title in COLUMNS.values())]
    for block, stages in blocks.items():
        for stage, numbers in stages.items():
            cells = (_cell(numbers, key, _width(title)) for key, title in COLUMNS.items())
            lines.append(f"{block:8} {stage:7}" + "".join(cells))
    return "\n".join(line.rstrip() for line in lines)


def _width(title: str) -> int:
    return max(8, len(title) + 2)


def _cell(numbers: dict[str, Any], key: str, width: int) -> str:
    return f"{numbers[key]:>{width}.3f}" if key in numbers else f"{'-':>{width}}"
