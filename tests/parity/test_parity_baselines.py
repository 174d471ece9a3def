"""The layers that VCA is compared with, against the float64 oracle: outputs, slopes, costs."""

import math
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from golden import Golden, norm_error
from torch import Tensor, nn

from backbone.site import AttentionSite
from baselines.agent import AgentAttention, AgentConfig
from baselines.differential import DifferentialAttention, DifferentialConfig
from care.mixer import CARE, CAREConfig
from vca.split import SplitContrastAttention, VCASplitConfig

Case = dict[str, Any]


def _site(case: Case, num_heads: int) -> AttentionSite:
    return AttentionSite(case["dim"], num_heads, tuple(case["grid"]), case.get("depth", 0))


def _differential(case: Case) -> nn.Module:
    config = DifferentialConfig(num_pairs=case["pairs"], norm=case.get("norm", True))
    return DifferentialAttention(config, _site(case, 1))


def _split(case: Case) -> nn.Module:
    config = VCASplitConfig(
        num_pairs=case["pairs"],
        pooled_grid=tuple(case["pool"]),
        allow_more_tokens_than_grid=True,
        source=case.get("source", "pool"),
        value_conv=case["dwc"],
    )
    return SplitContrastAttention(config, _site(case, 1))


def _agent(case: Case) -> nn.Module:
    config = AgentConfig(
        pooled_grid=tuple(case["pool"]),
        allow_more_tokens_than_grid=True,
        position_bias=case["bias"],
        num_prefix=case.get("prefix", 0),
        value_conv=case["dwc"],
    )
    return AgentAttention(config, _site(case, case["heads"]))


def _care(case: Case) -> nn.Module:
    options = {k: case[k] for k in ("memory", "norm", "inter1", "inter2", "residual2") if k in case}
    ratios = tuple(case["ratios"]) if "ratios" in case else None
    config = CAREConfig(head_dim=case["head_dim"], ratios=ratios, **options)
    return CARE(config, _site(case, 1))


@dataclass(frozen=True)
class Kind:
    """How a case becomes a layer, and what the oracle's parameters are called in it."""

    build: Callable[[Case], nn.Module]
    names: dict[str, str]  # oracle name, or its start -> ours
    results: dict[str, str]  # stored result -> the module of ours that computes it


STAGE = {"q1": "lq1", "k1": "lk1", "q2": "lq2", "k2": "lk2"}
KINDS = {
    "diff": Kind(
        _differential,
        {theirs: f"heads.lambda_weights.{ours}" for ours, theirs in STAGE.items()}
        | {"norm.": "heads.norm."},
        {"lambda": "heads.lambda_weights", "core": "heads"},
    ),
    "vca_split": Kind(
        _split,
        {
            f"{theirs}_{i}": f"stage{i}.lambda_weights.{ours}"
            for ours, theirs in STAGE.items()
            for i in (1, 2)
        }
        | {"norm1.": "stage1.norm.", "norm2.": "stage2.norm."}
        | {"dwc.": "value_conv.", "e_pos": "contrast_tokens.positive"},
        {"lambda1": "stage1.lambda_weights", "lambda2": "stage2.lambda_weights"}
        | {"tokens": "contrast_tokens", "v_hat": "stage1", "heads": "stage2", "dwc": "value_conv"},
    ),
    "agent": Kind(
        _agent,
        {"an_bias": "biases.gather.coarse", "na_bias": "biases.spread.coarse"}
        | {"ah_bias": "biases.gather.rows", "aw_bias": "biases.gather.columns"}
        | {"ha_bias": "biases.spread.rows", "wa_bias": "biases.spread.columns"}
        | {"ac_bias": "biases.gather.prefix", "ca_bias": "biases.spread.prefix"}
        | {"dwc.": "value_conv."},
        {"bias1": "biases.gather", "dwc": "value_conv"},
    ),
    "care": Kind(
        _care,
        {"qk.": "attention.qk.", "dw3.": "conv3.", "dw7.": "conv7."}
        | {"inter1.dw.": "inter1.conv.", "inter2.dw.": "inter2.conv."},
        {"global": "attention", "local3": "conv3", "local7": "conv7", "after_inter1": "inter1"},
    ),
}


def _our_name(kind: Kind, name: str) -> str:
    for theirs, ours in kind.names.items():
        if name.startswith(theirs):
            return ours + name.removeprefix(theirs)
    return name


def _our_layout(name: str, array: np.ndarray) -> Tensor:
    """The oracle keeps agents last in second-stage biases."""
    if name in ("ha_bias", "wa_bias", "ca_bias"):
        array = np.moveaxis(array, -1, 1)
    return torch.from_numpy(np.ascontiguousarray(array))


def _layer(case: Case, arrays: dict[str, np.ndarray]) -> nn.Module:
    """The case's layer in float64, holding the case's parameters and no others."""
    kind = KINDS[case["kind"]]
    layer = kind.build(case).double()
    state = {
        _our_name(kind, name): _our_layout(name, array)
        for name, array in _part(arrays, "param").items()
    }
    if not case.get("norm", True):
        state.pop("heads.norm.weight", None)  # stored, although the oracle does not read it
    layer.load_state_dict(state)
    return layer


def _part(arrays: dict[str, np.ndarray], part: str) -> dict[str, np.ndarray]:
    start = part + "/"
    return {k.removeprefix(start): v for k, v in arrays.items() if k.startswith(start)}


def _run(layer: nn.Module, case: Case, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Outputs, and what modules on the way computed, under the names of the oracle."""
    results: dict[str, Tensor] = {}
    modules = dict(layer.named_modules())
    for name, module in KINDS[case["kind"]].results.items():
        if module in modules:
            keep = lambda _, inputs, output, name=name: results.update({name: output})  # noqa: E731
            modules[module].register_forward_hook(keep)
    arguments = (tuple(case["grid"]), case.get("prefix", 0))
    if "z" not in inputs:
        return results | {"out": layer(inputs["x"], *arguments)}
    if layer.memory_dim is None:  # nothing reads the memory: it stays what it was
        return results | {"out": layer(inputs["x"], *arguments), "memory_out": inputs["z"]}
    out, memory = layer(inputs["x"], *arguments, inputs["z"])
    return results | {"out": out, "memory_out": memory}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    if "case" in metafunc.fixturenames:
        cases = [c for c in golden.json("attention/cases.json") if c["kind"] in KINDS]
        cases = [c for c in cases if golden.has(f"attention/{c['file']}")]
        if metafunc.function is test_slope:
            cases = [c for c in cases if c.get("grad")]
        metafunc.parametrize("case", cases, ids=[c["tag"] for c in cases])
    if "count" in metafunc.fixturenames:
        counts = [
            (row, name, row[name])
            for row in golden.json("attention/counts.json")
            for name in row
            if _counted_layer(name) is not None
        ]
        ids = [f"{row['model']}-{name}" for row, name, _ in counts]
        metafunc.parametrize("count", counts, ids=ids)


def _draw(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """The recipe of the golden numbers."""
    generator = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode())))
    return generator.standard_normal(shape)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_output(golden: Golden, case: Case, dtype: torch.dtype) -> None:
    arrays = golden.npz(f"attention/{case['file']}")
    layer = _layer(case, arrays).to(dtype)
    inputs = {k: torch.from_numpy(v).to(dtype) for k, v in _part(arrays, "in").items()}
    results = _run(layer, case, inputs)
    large_logits = case.get("x_scale", 1) > 1
    if dtype == torch.float32:
        results = {name: results[name] for name in ("out", "memory_out") if name in results}
    limit = 1e-12 if dtype == torch.float64 else 1e-4 if large_logits else 1e-5
    for name, result in results.items():
        stored = arrays.get(f"res/{name}")
        if stored is None:  # some cases store their ends only
            continue
        if stored.ndim == 4 and result.ndim == 3:  # heads, which ours has merged already
            stored = np.moveaxis(stored, 1, 2).reshape(result.shape)
        assert norm_error(result, stored) <= limit, name


def test_slope(golden: Golden, case: Case) -> None:
    arrays = golden.npz(f"attention/{case['file']}")
    layer = _layer(case, arrays)
    inputs = {k: torch.from_numpy(v).requires_grad_() for k, v in _part(arrays, "in").items()}
    out = _run(layer, case, inputs)["out"]
    (out * torch.from_numpy(arrays["cotangent"])).sum().backward()
    tensors = dict(layer.named_parameters()) | inputs
    for name, slope in _part(arrays, "slope").items():
        shape = arrays.get(f"param/{name}", arrays.get(f"in/{name}")).shape
        direction = _our_layout(name, _draw(f"{case['tag']}/{name}#direction", shape))
        tensor = tensors.get(_our_name(KINDS[case["kind"]], name))
        gradient = None if tensor is None else tensor.grad
        if gradient is None:  # what the settings never read
            assert slope == 0, name
            continue
        # A slope may be near zero by chance; the gradient's length is what it scales with.
        scale = max(abs(float(slope)), gradient.norm().item())
        assert abs((gradient * direction).sum().item() - slope) < 1e-6 * scale, name


def _counted_layer(name: str) -> Callable[[AttentionSite], nn.Module] | None:
    """The layer of an entry such as ``agent_n16``; None for layers that are tested elsewhere."""
    if name in ("diff", "diff_fused"):
        return lambda site: DifferentialAttention(DifferentialConfig(), site)
    if found := re.fullmatch(r"care_(\d+)_(\d+)", name):
        ratios = int(found[1]), int(found[2])
        return lambda site: CARE(CAREConfig(ratios=ratios), site)
    if found := re.fullmatch(r"agent_n(\d+)", name):
        config = AgentConfig(pooled_grid=(1, int(found[1])), allow_more_tokens_than_grid=True)
        return lambda site: AgentAttention(config, site)
    return None


def test_count(count: tuple[dict[str, Any], str, dict[str, int]]) -> None:
    row, name, expected = count
    side = math.isqrt(row["tokens"])
    build = _counted_layer(name)
    assert build is not None
    with torch.device("meta"):
        layer = build(AttentionSite(row["dim"], row["heads"], (side, side), 0))
    params = sum(parameter.numel() for parameter in layer.parameters())
    macs = layer.macs(row["tokens"])
    assert params == expected["params"]
    assert params - row["mhsa"]["params"] == expected.get(
        "extra_params", params - row["mhsa"]["params"]
    )
    assert (macs.fused_total if name.endswith("fused") else macs.total) == expected["macs"]
