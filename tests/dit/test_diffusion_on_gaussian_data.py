"""With the exact denoiser of a known Gaussian, every sampler draws that Gaussian."""

from typing import Any, NamedTuple

import pytest
import torch

from dit.diffusion import DiffusionConfig, DiffusionSamplerConfig, GaussianDiffusion

SHAPE = (64, 4, 16, 8)  # 32,768 independent elements: a spread is known to 0.4 %


class Case(NamedTuple):
    variance: str
    sampler: dict[str, Any]
    spread_tolerance: float  # at 250 steps


CASES = {
    "ddpm_learned_range": Case("learned_range", {"method": "ddpm"}, 0.03),
    "ddpm_fixed_large": Case("fixed_large", {"method": "ddpm"}, 0.05),
    "ddpm_fixed_small": Case("fixed_small", {"method": "ddpm"}, 0.05),
    "ddim": Case("learned_range", {"method": "ddim"}, 0.03),
    "ddim_eta_half": Case("fixed_small", {"method": "ddim", "eta": 0.5}, 0.03),
    "ddim_eta_one": Case("learned_range", {"method": "ddim", "eta": 1.0}, 0.05),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_the_exact_denoiser_gives_the_gaussian(
    case: Case, schedule: str, dtype: torch.dtype, exact_denoiser: Any
) -> None:
    spread_error = {}
    for num_steps in (4, 50, 250):
        process = GaussianDiffusion(
            DiffusionConfig(schedule, variance=case.variance),
            DiffusionSamplerConfig(num_sampling_steps=num_steps, **case.sampler),
        )
        denoiser = exact_denoiser(process)
        samples = _sample(process, denoiser, dtype)
        assert samples.isfinite().all()
        spread_error[num_steps] = abs(float(samples.std()) / denoiser.std - 1)
    assert abs(float(samples.mean()) - denoiser.mean) < 0.02
    assert spread_error[250] < case.spread_tolerance
    assert spread_error[250] < spread_error[50] + 0.01


def _sample(process: GaussianDiffusion, denoiser: Any, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)

    def normal(step: int = 0) -> torch.Tensor:
        return torch.randn(SHAPE, generator=generator)

    y = torch.zeros(SHAPE[0], dtype=torch.int64)
    samples = process.sample(denoiser, normal().to(dtype), y, normal)
    assert samples.dtype == dtype
    return samples.double()
