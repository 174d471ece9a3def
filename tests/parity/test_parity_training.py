"""Optimizer steps of DiT and SiT (train_*.npz): loss, gradients, weights, average, outputs."""

import copy
from collections.abc import Iterable
from functools import lru_cache

import numpy as np
import pytest
import torch
from golden import Golden, error
from networks import with_golden_weights
from torch import Tensor, nn

from dit.diffusion import DiffusionConfig, GaussianDiffusion
from runtime.ema import Ema, EmaConfig
from runtime.training_config import OptimizerConfig
from sit.flow import FlowConfig, InterpolantFlow

INPUTS = ("x", "noise", "y", "t", "probe_t")
PER_STEP = ("loss", "mse", "vb", "grad_norm")
TOLERANCES = {"probe": 5e-5, "weight": 1e-6, "ema": 1e-6}  # by the first word of the name
OTHER_TOLERANCE = 1e-5


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    cases = [
        (path.stem, name)
        for path in sorted(golden.path.glob("train_*.npz"))
        for name in golden.npz(path.name)
        if name not in INPUTS
    ]
    metafunc.parametrize(("file", "array"), cases, ids=map("-".join, cases))


def test_array(golden: Golden, file: str, array: str) -> None:
    ours, expected = _train(golden, file)[array], golden.npz(f"{file}.npz")[array]
    tolerance = TOLERANCES.get(array.split("_")[0], OTHER_TOLERANCE)
    if array == "grad_names":
        assert ours == expected.tolist()
    elif array in ("weight_l2", "ema_l2"):  # each tensor's relative to itself
        assert np.abs(np.array(ours) / expected - 1).max() < tolerance
    else:
        assert error(ours, expected) < tolerance


@lru_cache(maxsize=2)
def _train(golden: Golden, file: str) -> dict[str, list | Tensor]:
    """Takes as many steps as the file holds, with our own parts; what it records of them."""
    settings = golden.settings["train"]
    inputs = {name: torch.from_numpy(golden.npz(f"{file}.npz")[name]) for name in INPUTS}
    family, loss_terms = {"train_dit": ("DiT", _dit_loss), "train_sit": ("SiT", _sit_loss)}[file]
    model = f"{family}-{settings['model']}"
    network = copy.deepcopy(with_golden_weights(golden, model, settings["input_size"], "wide"))
    weights = {name: p for name, p in network.named_parameters() if p.requires_grad}
    optimizer = _optimizer(weights.values(), settings["lr"])
    ema = Ema(network, EmaConfig(decay=settings["ema_decay"], warmup=False))

    ours: dict[str, list | Tensor] = {name: [] for name in PER_STEP}
    ours |= {"grad_names": list(weights), "probe_before": _probe(network, inputs)}
    for step in range(len(inputs["x"])):
        x, noise, y, t = (inputs[name][step] for name in ("x", "noise", "y", "t"))
        terms = loss_terms(network, x, y, noise, t)
        optimizer.zero_grad()
        terms["loss"].mean().backward()
        gradients = [p.grad.double().norm().item() for p in weights.values()]
        optimizer.step()
        ema.update(network)
        ours.setdefault("grad_l2", gradients)
        terms |= {"loss": terms["loss"].mean(), "grad_norm": torch.tensor(gradients).norm()}
        for name, value in terms.items():
            ours[name].append(value.tolist())
    ours |= {"weight_l2": _norms(weights), "probe_after": _probe(network, inputs)}
    network.load_state_dict(ema.state_dict(network))
    ours |= {"ema_l2": _norms(weights), "probe_ema": _probe(network, inputs)}
    return ours


def _dit_loss(network: nn.Module, x: Tensor, y: Tensor, noise: Tensor, t: Tensor) -> dict:
    config = DiffusionConfig()
    u = (t + 0.5) / config.num_timesteps
    parts = GaussianDiffusion(config).loss_parts(network, x, y, noise, u)
    return {"loss": parts.total, "mse": parts.mse, "vb": parts.vb}


def _sit_loss(network: nn.Module, x: Tensor, y: Tensor, noise: Tensor, t: Tensor) -> dict:
    return {"loss": InterpolantFlow(FlowConfig()).loss(network, x, y, noise, u=t)}


def _optimizer(weights: Iterable[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    config = OptimizerConfig()
    return torch.optim.AdamW(
        weights,
        lr=lr,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        weight_decay=config.weight_decay,
        fused=True,
    )


def _probe(network: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    num_images = len(inputs["probe_t"])
    with torch.no_grad():
        x, y = inputs["x"][0, :num_images], inputs["y"][0, :num_images]
        return network(x, inputs["probe_t"], y)


def _norms(weights: dict[str, Tensor]) -> list[float]:
    """Norm of each tensor, without the key part of ``qkv.bias``, whose true gradient is zero."""

    def counted(name: str, weight: Tensor) -> Tensor:
        if not name.endswith("attn.qkv.bias"):
            return weight
        query, _, value = weight.chunk(3)
        return torch.cat([query, value])

    return [counted(name, w).double().norm().item() for name, w in weights.items()]
