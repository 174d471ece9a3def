"""Interpolants and their samplers (tr_*): every array is compared, an input, or named as left out.

The arrays come from the published code. Where that code has a fault, the comparison is with the
sound value; each such place says so.
"""

import math
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from exact_gaussian import ExactGaussian
from golden import Golden, error
from torch import Tensor

from sit.conversions import convert
from sit.diffusion_coefficients import DIFFUSION_COEFFICIENTS, diffusion_coefficient
from sit.flow import FlowConfig, FlowSamplerConfig, InterpolantFlow
from sit.intervals import training_interval
from sit.paths import PATHS
from sit.samplers import stochastic_times

Arrays = dict[str, np.ndarray]
Names = dict[str, str]  # the parts of an array's name

# The layout: the words in array names, the order of packed axes, and the tolerances.
ODE_NAMES = {"heun2": "heun"}  # the others are called as ours are
SDE_NAMES = {"Euler": "euler_maruyama", "Heun": "stochastic_heun"}
PACKED_FORMS = ("constant", "SBDM", "sigma", "linear", "decreasing", "increasing-decreasing")
PACKED_LAST_STEPS = ("None", "Mean", "Tweedie", "Euler")
PACKED_METHODS = ("Euler", "Heun")
F64, F64_VP_DSIGMA, F32_PATH, F32_STATE, ADAPTIVE = 1e-9, 1e-8, 3e-3, 5e-4, 3e-2
NEAR_DATA = 1e-4  # float32 sigma and sigma' of curved paths are not compared this near t = 1

PATH = r"(?P<path>Linear|GVP|VP)"
PREDICTION = r"(?P<prediction>velocity|noise|score)"
MODEL = r"(?P<model>tanh|gauss)"
FORM = rf"(?P<form>{'|'.join(PACKED_FORMS)})"
LAST_STEP = rf"(?P<last_step>{'|'.join(PACKED_LAST_STEPS)})"

INPUTS = {
    "tr_path.npz": r"t",
    "tr_plan.npz": r"t|x0|x1|model_out",
    "tr_loss.npz": r"u|x0|x1|model_out",
    "tr_ode.npz": rf"x_init|x_init_reverse|{PATH}_{PREDICTION}_interval_rev",
    "tr_sde.npz": rf"x_init|w|usable_{PATH}_{PREDICTION}",
}
LEFT_OUT = {
    # dopri5 of the published code runs past the end: its times and counts are not ours to match.
    "tr_ode.npz": r".*_nfe_tmin_tmax",
    # No likelihoods yet.
    "tr_loglik.npz": r".*",
}


# --- what we have for the arrays of each file -------------------------------------------------


def check_path_function(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    path, what = PATHS[names["path"].lower()], names["what"]
    dtype = torch.float32 if names["f32"] else torch.float64
    t = torch.from_numpy(arrays["t"]).to(dtype)
    here = path.at(t)
    ours = {
        "alpha": here.alpha,
        "dalpha": here.dalpha,
        "sigma": here.sigma,
        "dsigma": here.dsigma,
        "dlogalpha": here.dalpha / here.alpha,
        "drift_x": -here.dalpha / here.alpha,
        "drift_var": path.score_coefficient(t),
    }[what]
    compared = torch.ones_like(t, dtype=torch.bool)
    tolerance = F32_PATH if names["f32"] else F64
    if what == "dsigma" and names["path"] == "VP" and not names["f32"]:
        tolerance = F64_VP_DSIGMA
    if what in ("sigma", "dsigma") and names["path"] != "Linear" and names["f32"]:
        compared = torch.from_numpy(1 - arrays["t"] >= NEAR_DATA)
    assert error(ours[compared], arrays[name][compared.numpy()]) < tolerance


def check_diffusion(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    t = torch.from_numpy(arrays["t"])
    path = PATHS[names["path"].lower()]
    ours = diffusion_coefficient(our_name(names["form"]), path, t, float(names["norm"]))
    assert error(ours, arrays[name]) < F64


def check_mixture(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    x, noise = torch.from_numpy(arrays["x1"]), torch.from_numpy(arrays["x0"])
    here = plan_point(arrays, names)
    ours = {
        "xt": here.alpha * x + here.sigma * noise,
        "ut": here.dalpha * x + here.dsigma * noise,
    }[names["what"]]
    assert error(ours, arrays[name]) < F64


def check_conversion(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    words = {"v": "velocity", "drift": "velocity"}
    source = words.get(names["source"], names["source"])
    target = words.get(names["target"], names["target"])
    predicted, x_t = (torch.from_numpy(arrays[key]) for key in ("model_out", f"{names['path']}_xt"))
    ours = convert(plan_point(arrays, names), predicted, source, target, x_t)
    assert error(ours, arrays[name]) < F64


def plan_point(arrays: Arrays, names: Names) -> Any:
    t = torch.from_numpy(arrays["t"])[:, None, None, None]
    return PATHS[names["path"].lower()].at(t)


def check_loss(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    """The published velocity loss ignores its weighting; a flow here refuses one."""
    path, prediction = names["path"].lower(), names["prediction"]
    weighting = (names["weighting"] or "None").lower()
    flow = InterpolantFlow(
        FlowConfig(path, prediction, "none" if prediction == "velocity" else weighting)
    )
    margin = golden.settings["tr_loss"]["train_eps"]
    flow.train_interval = training_interval(flow.path, prediction, margin)
    seen: dict[str, Tensor] = {}

    def network(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        seen.update(xt=x_t, t=t)
        return torch.from_numpy(arrays["model_out"])

    x, noise, u = (torch.from_numpy(arrays[key]) for key in ("x1", "x0", "u"))
    y = torch.zeros(len(u), dtype=torch.long)
    seen["loss"] = flow.loss(network, x, y, noise, u)
    assert error(seen[names["what"]], arrays[name]) < F64


def check_ode_interval(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    flow = a_flow(names, FlowSamplerConfig(method="euler"))
    assert error(flow.sampler.times[[0, -1]], arrays[name]) < F64


def check_ode_end(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    """States of a fixed-step method; a grid of n points is n - 1 steps."""
    sampler = FlowSamplerConfig(
        method=ODE_NAMES.get(names["method"], names["method"]),
        num_sampling_steps=int(names["n"]) - 1,
        interval=reverse_interval(arrays, names),
    )
    start = ode_start(arrays, names).to(torch.float32 if names["f32"] else torch.float64)
    states = [start, *ode_states(golden, names, sampler, start)]
    ours = torch.stack(states) if names["trajectory"] else states[-1]
    assert error(ours, arrays[name]) < (F32_STATE if names["f32"] else F64)


def check_adaptive_end(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    """Near the exact end where there is one: the published end is farther from it than ours.

    An image alone ends where it does in its batch.
    """
    exact = f"{names['path']}_{names['prediction']}_{names['model']}_exact{names['reverse'] or ''}"
    sampler = FlowSamplerConfig(method="dopri5", interval=reverse_interval(arrays, names))
    start = ode_start(arrays, names)
    *_, ours = ode_states(golden, names, sampler, start)
    assert error(ours, arrays[exact if exact in arrays else name]) < ADAPTIVE
    for i in range(len(start)):
        *_, alone = ode_states(golden, names, sampler, start[i : i + 1])
        assert error(alone, ours[i : i + 1].numpy()) < F64


def ode_states(
    golden: Golden, names: Names, sampler: FlowSamplerConfig, start: Tensor
) -> list[Tensor]:
    y = torch.zeros(len(start), dtype=torch.long)
    return list(a_flow(names, sampler).states(a_network(golden, names), start, y, no_noise))


def ode_start(arrays: Arrays, names: Names) -> Tensor:
    return torch.from_numpy(arrays["x_init_reverse" if names["reverse"] else "x_init"])


def reverse_interval(arrays: Arrays, names: Names) -> tuple[float, float] | None:
    if not names["reverse"]:
        return None
    start, end = arrays[f"{names['path']}_{names['prediction']}_interval_rev"].tolist()
    return start, end


def check_sde_interval(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    """Where the published run divides by zero, ours has another interval."""
    usable = arrays[f"usable_{names['path']}_{names['prediction']}"]
    for place, choice in sde_choices():
        if usable[place]:
            flow = a_flow(names, sde_config(golden, **choice))
            times, _ = stochastic_times(flow.sampler_config, flow.path, flow.config.prediction)
            assert error(times[[0, -1]], arrays[name][place[:2]]) < F64, choice


def check_sde_ends(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    usable = arrays[f"usable_{names['path']}_{names['prediction']}"]
    assert usable.shape == tuple(map(len, (PACKED_FORMS, PACKED_LAST_STEPS, PACKED_METHODS)))
    for place, choice in sde_choices():
        ours = sde_states(golden, arrays, names | choice, torch.float64)[-1]
        assert ours.isfinite().all()
        if usable[place]:
            assert error(ours, arrays[name][place]) < F64, choice


def check_sde_states(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    """All states: the published list repeats the last one where there is no last step."""
    states = sde_states(golden, arrays, names, torch.float64)
    if names["last_step"] == "None":
        states.append(states[-1])
    assert error(torch.stack(states), arrays[name]) < F64


def check_sde_float32_end(golden: Golden, arrays: Arrays, names: Names, name: str) -> None:
    ours = sde_states(golden, arrays, names, torch.float32)[-1]
    assert ours.dtype == torch.float32
    assert error(ours, arrays[name]) < F32_STATE


def sde_choices() -> list[tuple[tuple[int, int, int], Names]]:
    """Each place along the packed axes, and what it stands for."""
    axes = (PACKED_FORMS, PACKED_LAST_STEPS, PACKED_METHODS)
    return [
        ((i, j, k), {"form": form, "last_step": last_step, "method": method})
        for (i, form), (j, last_step), (k, method) in product(*map(enumerate, axes))
    ]


def sde_config(golden: Golden, form: str, last_step: str, method: str) -> FlowSamplerConfig:
    """A grid of n points is n steps with a last step, n - 1 without."""
    settings, has_last_step = golden.settings["tr_sde"], last_step != "None"
    return FlowSamplerConfig(
        method=SDE_NAMES[method],
        num_sampling_steps=settings["num_points"] - (not has_last_step),
        diffusion=our_name(form),
        diffusion_norm=float(settings["norm"]),
        last_step=last_step.lower(),
        last_step_size=settings["last_step"] if has_last_step else None,
    )


def sde_states(golden: Golden, arrays: Arrays, names: Names, dtype: torch.dtype) -> list[Tensor]:
    choice = {key: names[key] for key in ("form", "last_step", "method")}
    flow = a_flow(names, sde_config(golden, **choice))
    start, w = (torch.from_numpy(arrays[key]).to(dtype) for key in ("x_init", "w"))
    y = torch.zeros(len(start), dtype=torch.long)
    return list(flow.states(a_network(golden, names), start, y, lambda i: w[i]))


def a_flow(names: Names, sampler: FlowSamplerConfig) -> InterpolantFlow:
    config = FlowConfig(path=names["path"].lower(), prediction=names["prediction"])
    return InterpolantFlow(config, sampler)


def a_network(golden: Golden, names: Names) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    if names.get("model", "gauss") == "gauss":
        gauss = golden.settings["tr_gauss"]
        path = names["path"].lower()
        return ExactGaussian(path, names["prediction"], gauss["mean"], gauss["std"])
    a, b, c = golden.settings["tr_tanh"]

    def tanh(x: Tensor, t: Tensor, y: Tensor) -> Tensor:
        t = t[:, None, None, None]
        return torch.tanh(a * x + b * torch.sin(2 * math.pi * t)) + c * t

    return tanh


def no_noise(i: int) -> Tensor:
    raise AssertionError("an ODE asked for noise")


def our_name(word: str) -> str:
    return word.lower().replace("-", "_")


Check = Callable[[Golden, Arrays, Names, str], None]
REVERSE = r"(?P<reverse>_rev)?"
CHECKS: dict[str, list[tuple[str, Check]]] = {
    "tr_path.npz": [
        (rf"{PATH}_(?P<what>d?alpha|d?sigma)(?P<f32>_f32)?", check_path_function),
        (rf"{PATH}_(?P<what>dlogalpha|drift_x|drift_var)(?P<f32>_f32)?", check_path_function),
        (rf"{PATH}_D_{FORM}_norm(?P<norm>[\d.]+)", check_diffusion),
    ],
    "tr_plan.npz": [
        (rf"{PATH}_(?P<what>xt|ut)", check_mixture),
        (rf"{PATH}_(?P<target>v|score|noise)_from_(?P<source>v|score|noise)", check_conversion),
        (rf"{PATH}_(?P<source>velocity|noise|score)_(?P<target>drift|score)", check_conversion),
    ],
    "tr_loss.npz": [
        (
            rf"{PATH}_{PREDICTION}_(?P<weighting>None|velocity|likelihood)_(?P<what>loss)",
            check_loss,
        ),
        (rf"{PATH}_{PREDICTION}_(?P<weighting>)(?P<what>t|xt)", check_loss),
    ],
    "tr_ode.npz": [
        (rf"{PATH}_{PREDICTION}_interval", check_ode_interval),
        (rf"{PATH}_{PREDICTION}_{MODEL}_(exact|dopri5_n\d+){REVERSE}", check_adaptive_end),
        (
            rf"{PATH}_{PREDICTION}_{MODEL}_(?P<method>[a-z]+\d?)_n(?P<n>\d+)"
            rf"(?P<f32>_f32)?(?P<trajectory>_traj)?{REVERSE}",
            check_ode_end,
        ),
    ],
    "tr_sde.npz": [
        (rf"interval_{PATH}_{PREDICTION}", check_sde_interval),
        (rf"end_{MODEL}_{PATH}_{PREDICTION}", check_sde_ends),
        (
            rf"traj_{MODEL}_{PATH}_{PREDICTION}_{FORM}_{LAST_STEP}_(?P<method>Euler|Heun)",
            check_sde_states,
        ),
        (
            rf"end32_{MODEL}_{PATH}_{PREDICTION}_{FORM}_{LAST_STEP}_(?P<method>Euler|Heun)",
            check_sde_float32_end,
        ),
    ],
}


# --- the tests --------------------------------------------------------------------------------


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    golden = Golden.of(metafunc.config)
    files = [file for file in (*CHECKS, "tr_loglik.npz") if golden.has(file)]
    if "check" in metafunc.fixturenames:
        cases = [
            (file, name, check, names)
            for file in files
            for name in golden.npz(file)
            for check, names in [check_of(file, name)]
            if check is not None
        ]
        ids = [f"{file}-{name}" for file, name, _, _ in cases]
        metafunc.parametrize(("file", "name", "check", "names"), cases, ids=ids)
    elif "file" in metafunc.fixturenames:
        metafunc.parametrize("file", files)
    elif "row" in metafunc.fixturenames:
        rows = [row for row in golden.json("tr_intervals.json") if not eps_arguments(row)]
        ids = [f"{row['path']}-{row['prediction']}" for row in rows]
        metafunc.parametrize("row", rows, ids=ids)


def check_of(file: str, name: str) -> tuple[Check | None, Names]:
    """The check of an array, and the parts of its name."""
    for patterns in (INPUTS, LEFT_OUT):
        if file in patterns and re.fullmatch(patterns[file], name):
            return None, {}
    for pattern, check in CHECKS.get(file, []):
        if match := re.fullmatch(pattern, name):
            return check, match.groupdict()
    return None, {}


def test_every_array_is_compared_an_input_or_left_out(golden: Golden, file: str) -> None:
    def is_known(name: str) -> bool:
        known = (INPUTS.get(file, "(?!)"), LEFT_OUT.get(file, "(?!)"))
        return check_of(file, name)[0] is not None or any(re.fullmatch(p, name) for p in known)

    assert [name for name in golden.npz(file) if not is_known(name)] == []


@pytest.mark.usefixtures("unchecked_shapes")
def test_array(golden: Golden, file: str, name: str, check: Check, names: Names) -> None:
    check(golden, golden.npz(file), names, name)


def eps_arguments(row: dict[str, Any]) -> bool:
    """Rows with explicit limits record how the published code resolves them: left out."""
    return row["train_eps_arg"] is not None or row["sample_eps_arg"] is not None


def test_default_intervals(row: dict[str, Any]) -> None:
    """Left out: ode_reverse, the published mirror image; runs here name a reverse interval."""
    path, names = PATHS[row["path"].lower()], {key: row[key] for key in ("path", "prediction")}
    flow = a_flow(names, FlowSamplerConfig(method="euler"))
    assert flow.train_interval == pytest.approx(row["train"], abs=F64)
    assert flow.sampler.times[[0, -1]].tolist() == pytest.approx(row["ode"], abs=F64)
    for key in row:
        if match := re.fullmatch(r"sde_(SBDM|other)_last([\d.]+)", key):
            forms = set(DIFFUSION_COEFFICIENTS) - {"sbdm"} if match[1] == "other" else {"sbdm"}
            for form in forms:
                ours = stochastic_ends(names, form, last_step_size=float(match[2]))
                start = torch.tensor(row[key][0], dtype=torch.float64)
                if diffusion_coefficient(form, path, start, 1.0).isinf():
                    assert ours[0] > start  # the published run starts where D is infinite
                else:
                    assert ours == pytest.approx(row[key], abs=F64)


def stochastic_ends(names: Names, form: str, last_step_size: float) -> list[float]:
    sampler = FlowSamplerConfig(
        method="euler_maruyama",
        diffusion=form,
        last_step="mean" if last_step_size else "none",
        last_step_size=last_step_size or None,
    )
    flow = a_flow(names, sampler)
    times, _ = stochastic_times(flow.sampler_config, flow.path, flow.config.prediction)
    return times[[0, -1]].tolist()
