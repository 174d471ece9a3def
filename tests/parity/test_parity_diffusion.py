"""Discrete diffusion (gd_*.npz): schedules, respacing, losses, single steps, whole trajectories.

Every array of these files is an input, compared, or named in ``LEFT_OUT``.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from golden import Golden, error
from torch import Tensor

from dit.chain import Chain
from dit.diffusion import DiffusionConfig, DiffusionSamplerConfig, GaussianDiffusion
from dit.loss import LossParts, hybrid_loss
from dit.markov import ImplicitTransition, MarkovSampler, ancestral_transition
from dit.respacing import kept_timesteps
from dit.schedule import alpha_bars
from dit.variance import VARIANCES

Arrays = dict[str, np.ndarray]
Names = dict[str, str]  # the parts of an array's name
DTYPES = {"f64": torch.float64, "f32": torch.float32}
F64, F32_STEP, F32_TRAJECTORY, EXACT = 1e-10, 1e-4, 1e-5, 0.0


# --- what we have for the arrays of each file -------------------------------------------------


def schedule_array(golden: Golden, arrays: Arrays, names: Names) -> Tensor:
    chain = _chain(names["spec"], {"lin": "linear", "cos": "cosine"}[names["schedule"]], names["n"])
    return SCHEDULE_ARRAYS[names["what"]](chain)


SCHEDULE_ARRAYS: dict[str, Callable[[Chain], Tensor]] = {
    "betas": lambda chain: chain.tables.log_beta.exp(),
    "alphas_cumprod": lambda chain: chain.alpha_bar,
    "alphas_cumprod_prev": lambda chain: chain.tables.previous_alpha.square(),
    "alphas_cumprod_next": lambda chain: torch.cat([chain.alpha_bar[1:], torch.zeros(1)]),
    "sqrt_alphas_cumprod": lambda chain: chain.tables.alpha,
    "sqrt_one_minus_alphas_cumprod": lambda chain: chain.tables.sigma,
    "log_one_minus_alphas_cumprod": lambda chain: 2 * chain.tables.sigma.log(),
    "sqrt_recip_alphas_cumprod": lambda chain: 1 / chain.tables.alpha,
    "sqrt_recipm1_alphas_cumprod": lambda chain: chain.tables.sigma / chain.tables.alpha,
    "posterior_variance": lambda chain: chain.tables.posterior_std.square(),
    "posterior_log_variance_clipped": lambda chain: chain.tables.log_posterior,
    "posterior_mean_coef1": lambda chain: chain.tables.posterior_x,
    "posterior_mean_coef2": lambda chain: chain.tables.posterior_x_t,
    "timestep_map": lambda chain: chain.timesteps,
}


def respaced_steps(golden: Golden, arrays: Arrays, names: Names) -> Tensor:
    return torch.tensor(_kept(int(names["n"]), names["spec"]))


def loss_array(golden: Golden, arrays: Arrays, names: Names) -> Tensor:
    dtype = DTYPES[names["dtype"] or "f64"]
    parts, x_t, seen = _loss(golden, arrays, names["process"], "learned_range", dtype)
    assert parts.vb is not None
    ours = {"mse": parts.mse, "vb": parts.vb, "loss": parts.total, "xt": x_t, "t_seen": seen}
    return ours[names["what"]]


def step_array(golden: Golden, arrays: Arrays, names: Names) -> Tensor:
    step = _Step(golden, arrays, names["process"], "learned_range", DTYPES[names["dtype"]])
    clip = 1.0 if names["clip"] == "1" else None  # clip1 is to [-1, 1]
    if names["eta"] is not None:
        return step.sampled(ImplicitTransition(float(names["eta"])), clip)
    return step.quantity(names["what"], clip)


def trajectory(golden: Golden, arrays: Arrays, names: Names) -> Tensor:
    """All states: what the network saw, and the result."""
    dtype = DTYPES[names["dtype"]]
    num_steps, spacing = _steps_and_spacing(names["spec"])
    sampler = DiffusionSamplerConfig(
        method=names["method"],
        num_sampling_steps=num_steps,
        spacing=spacing,
        eta=None if names["eta"] is None else float(names["eta"]),
        clip=1.0 if names["clip"] == "1" else None,
    )
    states: list[Tensor] = []

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        states.append(x_t)
        return _analytic_model(golden, x_t, t)

    start = torch.from_numpy(arrays["x_init"]).to(dtype)
    noise = torch.from_numpy(arrays["noise"]).to(dtype)
    y = torch.zeros(len(start), dtype=torch.int64)
    process = GaussianDiffusion(DiffusionConfig(), sampler)
    states.append(process.sample(denoiser, start, y, lambda i: noise[i]))
    return torch.stack(states)


def trajectory_timesteps(golden: Golden, arrays: Arrays, names: Names) -> Tensor:
    return torch.tensor(_kept(DiffusionConfig().num_timesteps, names["spec"]))


def variant_array(golden: Golden, arrays: Arrays, names: Names) -> Tensor:
    variance = {"fixlarge": "fixed_large", "fixsmall": "fixed_small"}[names["variant"]]
    if names["what"] in ("mse", "loss"):
        parts, _, _ = _loss(golden, arrays, names["process"], variance, torch.float64)
        return parts.mse if names["what"] == "mse" else parts.total
    step = _Step(golden, arrays, names["process"], variance, torch.float64)
    if (variance, names["what"]) == ("fixed_small", "p_var"):  # its logarithm alone is mended at 0
        return step.c.posterior_std.square().flatten()
    return step.quantity(names["what"], clip=None)


# --- the files --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Compared:
    pattern: str
    ours: Callable[[Golden, Arrays, Names], Tensor]
    tolerance: float


PROCESS = r"(?P<process>base|spaced)"
COMPARED = {
    "gd_schedule.npz": [
        Compared(
            r"(?P<schedule>lin|cos)(?P<n>\d+)(_r(?P<spec>[^_]+))?_"
            rf"(?P<what>{'|'.join(SCHEDULE_ARRAYS)})",
            schedule_array,
            F64,
        )
    ],
    "gd_respace.npz": [Compared(r"n(?P<n>\d+)_(?P<spec>.+)", respaced_steps, EXACT)],
    "gd_loss.npz": [
        Compared(PROCESS + r"_(?P<what>xt|mse|vb|loss)_(?P<dtype>f64)", loss_array, F64),
        Compared(PROCESS + r"_(?P<what>xt|mse|vb|loss)_(?P<dtype>f32)", loss_array, F32_STEP),
        Compared(PROCESS + r"_(?P<what>t_seen)(?P<dtype>)", loss_array, EXACT),
    ],
    "gd_step.npz": [
        Compared(
            PROCESS + r"_(?P<what>qpost_mean|q_mean|q_logvar|p_mean|p_xstart|p_logvar|p_var"
            r"|p_sample|ddim_eta(?P<eta>[\d.]+))(_clip(?P<clip>[01]))?_(?P<dtype>" + dtype + ")",
            step_array,
            tolerance,
        )
        for dtype, tolerance in (("f64", F64), ("f32", F32_STEP))
    ],
    "gd_traj.npz": [
        Compared(r"(?P<spec>[^_]+)_map", trajectory_timesteps, EXACT),
        *(
            Compared(
                r"(?P<spec>[^_]+)_(?P<method>ddpm|ddim)_clip(?P<clip>[01])(_eta(?P<eta>[\d.]+))?"
                r"_(?P<dtype>" + dtype + ")",
                trajectory,
                tolerance,
            )
            for dtype, tolerance in (("f64", F64), ("f32", F32_TRAJECTORY))
        ),
    ],
    "gd_variants.npz": [
        Compared(
            PROCESS + r"_(?P<variant>fixlarge|fixsmall)_(?P<what>mse|loss|p_mean|p_var|p_logvar)",
            variant_array,
            F64,
        )
    ],
}
INPUTS = {
    "gd_loss.npz": r"x_start|noise|model_out|(base|spaced)_t",
    "gd_step.npz": r"x_start|noise|model_out|x|(base|spaced)_t",
    "gd_traj.npz": r"x_init|noise",
    "gd_variants.npz": r"x_start|noise|model_out|x|(base|spaced)_t",
}
LEFT_OUT = {
    "gd_loss.npz": r".*_rescaled_f\d\d",  # the loss with a rescaled bound
    "gd_step.npz": r".*_ddim_reverse_f\d\d",  # DDIM from data to noise
    "gd_variants.npz": r"bpd_.*"  # the full bound of a data point
    r"|(base|spaced)_x0_.*"  # networks that predict the clean latents
    r"|(base|spaced)_kl_(.*_)?loss",  # the bound alone as the loss
}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    files = [path.name for path in sorted(golden.path.glob("gd_*.npz"))]
    if "array" in metafunc.fixturenames:
        cases = [(f, name) for f in files for name in golden.npz(f) if _compared(f, name)]
        ids = [f"{file.removesuffix('.npz')}-{name}" for file, name in cases]
        metafunc.parametrize(("file", "array"), cases, ids=ids)
    elif "file" in metafunc.fixturenames:
        metafunc.parametrize("file", files)


def test_array(golden: Golden, file: str, array: str) -> None:
    arrays = golden.npz(file)
    ((case, names),) = _compared(file, array)
    tolerance = max(case.tolerance, 1.1 * _round_off(arrays, array))
    assert error(case.ours(golden, arrays, names), arrays[array]) <= tolerance


def test_every_array_is_accounted_for(golden: Golden, file: str) -> None:
    for name in golden.npz(file):
        roles = [
            len(_compared(file, name)) == 1,
            re.fullmatch(INPUTS.get(file, ""), name) is not None,
            re.fullmatch(LEFT_OUT.get(file, ""), name) is not None,
        ]
        assert sum(roles) == 1, f"{file}: {name}"


def _round_off(arrays: Arrays, name: str) -> float:
    """How far a float32 array is from its own float64 twin.

    The published DDIM step subtracts nearly equal float32 numbers at the first states, which
    clipping magnifies to about 6e-5; ours does not.
    """
    twin = name.removesuffix("f32") + "f64"
    return error(arrays[name], arrays[twin]) if name != twin and twin in arrays else 0.0


def _compared(file: str, name: str) -> list[tuple[Compared, Names]]:
    matches = [(case, re.fullmatch(case.pattern, name)) for case in COMPARED.get(file, [])]
    return [(case, match.groupdict()) for case, match in matches if match]


# --- chains, losses and steps -----------------------------------------------------------------


def _steps_and_spacing(spec: str) -> tuple[int, str]:
    """Our settings for a published spec: "250", "ddim50", or "10-15-20" for a list."""
    if spec.startswith("ddim"):
        return int(spec.removeprefix("ddim")), "ddim"
    sections = spec.replace("-", ",")
    steps = [int(number) for number in sections.split(",")]
    return sum(steps), "even" if len(steps) == 1 else sections


def _kept(num_timesteps: int, spec: str) -> list[int]:
    return kept_timesteps(num_timesteps, *_steps_and_spacing(spec))


def _chain(spec: str | None, schedule: str = "linear", num_timesteps: str | int = 1000) -> Chain:
    n = int(num_timesteps)
    chain = Chain(alpha_bars(schedule, n), torch.arange(n))
    return chain if spec is None else chain.respaced(_kept(n, spec))


def _chain_of(golden: Golden, process: str) -> Chain:
    config = DiffusionConfig()
    spec = golden.settings["gd_spaced"] if process == "spaced" else None
    return _chain(spec, config.schedule, config.num_timesteps)


def _analytic_model(golden: Golden, x: Tensor, t: Tensor) -> Tensor:
    constants = golden.settings["gd_model"]
    (e0, e1), (v0, v1, v2) = constants["eps"], constants["v"]
    time = t.to(x)[:, None, None, None]
    noise = torch.tanh(e0 * x + e1 * torch.sin(time / 1000))
    values = v0 * torch.sin(v1 * x - time / v2)
    return torch.cat([noise, values], dim=1)


def _loss(
    golden: Golden, arrays: Arrays, process: str, variance: str, dtype: torch.dtype
) -> tuple[LossParts, Tensor, Tensor]:
    """The loss of the stored prediction, and the latents and timesteps that the network saw."""
    x, noise, prediction = _inputs(arrays, variance, dtype)
    k = torch.from_numpy(arrays[f"{process}_t"])
    asked: list[tuple[Tensor, Tensor]] = []

    def denoiser(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        asked.append((x_t, t))
        return prediction

    chain, y = _chain_of(golden, process), torch.zeros_like(k)
    parts = hybrid_loss(chain, VARIANCES[variance], denoiser, x, y, noise, k)
    ((x_t, seen),) = asked
    return parts, x_t, seen


def _inputs(arrays: Arrays, variance: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    x, noise, prediction = (
        torch.from_numpy(arrays[name]).to(dtype) for name in ("x_start", "noise", "model_out")
    )
    return x, noise, prediction if VARIANCES[variance].learned else prediction[:, : x.shape[1]]


class _Step:
    """One step back from the stored ``x``, each image at its own state of the chain."""

    def __init__(
        self, golden: Golden, arrays: Arrays, process: str, variance: str, dtype: torch.dtype
    ) -> None:
        self.chain, self.variance = _chain_of(golden, process), VARIANCES[variance]
        self.x, self.noise, self.prediction = _inputs(arrays, variance, dtype)
        self.x_t = torch.from_numpy(arrays["x"]).to(dtype)
        self.k = torch.from_numpy(arrays[f"{process}_t"])
        _, self.c = self.chain.gather(self.k, dtype)

    def sampled(self, transition: Callable[..., Tensor], clip: float | None) -> Tensor:
        sampler = MarkovSampler(self.chain, self.variance, transition, clip)
        mean, std = sampler.step(self.c, self.x_t, self.prediction)
        if std is None:
            return mean
        return mean + torch.where(self.k == 0, 0, 1)[:, None, None, None] * std * self.noise

    def quantity(self, what: str, clip: float | None) -> Tensor:
        c, sampler = self.c, MarkovSampler(self.chain, self.variance, ancestral_transition, clip)
        predicted_noise, values = self.variance.split(self.prediction, self.x.shape[1])
        log_variance = self.variance.log_variance(c, values)
        if not self.variance.learned:
            log_variance = log_variance.flatten()  # the goldens hold one number per image
        predicted_x = c.clean(self.x_t, predicted_noise)
        quantities: dict[str, Callable[[], Tensor]] = {
            "qpost_mean": lambda: c.posterior_mean(self.x, self.x_t),
            "q_mean": lambda: c.alpha * self.x,
            "q_logvar": lambda: 2 * c.sigma.log().flatten(),
            "p_mean": lambda: sampler.step(c, self.x_t, self.prediction).mean,
            "p_xstart": lambda: predicted_x if clip is None else predicted_x.clamp(-clip, clip),
            "p_logvar": lambda: log_variance,
            "p_var": lambda: log_variance.exp(),
            "p_sample": lambda: self.sampled(ancestral_transition, clip),
        }
        return quantities[what]()
