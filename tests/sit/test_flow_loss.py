"""What the flow's loss compares, how it weighs it, and at which times."""

from collections.abc import Callable
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from sit.flow import FlowConfig, InterpolantFlow
from sit.paths import PATHS

PREDICTIONS = ("velocity", "noise", "score")
PATH_AND_PREDICTION = list(product(PATHS, PREDICTIONS))

every_flow = pytest.mark.parametrize(("path", "prediction"), PATH_AND_PREDICTION)

# g of velocity = (alpha' / alpha) x_t + g score, written out for each path.
G: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda t: (1 - t) / t,
    "gvp": lambda t: torch.pi / 2 / torch.tan(torch.pi / 2 * t),
    "vp": lambda t: (0.1 + 19.9 * (1 - t)) / 2,
}
SIGMA: dict[str, Callable[[Tensor], Tensor]] = {
    "linear": lambda t: 1 - t,
    "gvp": lambda t: torch.cos(torch.pi / 2 * t),
    "vp": lambda t: torch.sqrt(1 - torch.exp(-9.95 * (1 - t) ** 2 - 0.1 * (1 - t))),
}


def batch(size: int = 6) -> dict[str, Tensor]:
    return {
        "x": torch.randn(size, 2, 3, 3, dtype=torch.float64),
        "y": torch.zeros(size, dtype=torch.long),
        "noise": torch.randn(size, 2, 3, 3, dtype=torch.float64),
        "u": torch.rand(size, dtype=torch.float64),
    }


def fixed(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
    return torch.sin(3 * x_t) + t[:, None, None, None]


@every_flow
@pytest.mark.parametrize("weighting", ["none", "velocity", "likelihood"])
def test_loss_is_the_formula_written_out(path: str, prediction: str, weighting: str) -> None:
    if prediction == "velocity" and weighting != "none":
        with pytest.raises(ValueError, match="no effect"):
            FlowConfig(path, prediction, weighting)
        return
    given, flow = batch(), InterpolantFlow(FlowConfig(path, prediction, weighting))
    t = flow.time(given["u"])
    wide, here = t[:, None, None, None], PATHS[path].at(t[:, None, None, None])
    x_t = here.alpha * given["x"] + here.sigma * given["noise"]
    residual = {
        "velocity": fixed(x_t, t, given["y"])
        - (here.dalpha * given["x"] + here.dsigma * given["noise"]),
        "noise": fixed(x_t, t, given["y"]) - given["noise"],
        "score": SIGMA[path](wide) * fixed(x_t, t, given["y"]) + given["noise"],
    }[prediction]
    g, sigma = G[path](t), SIGMA[path](t)
    weight = {"none": 1, "velocity": (g / sigma) ** 2, "likelihood": g / sigma**2}[weighting]
    expected = weight * residual.square().mean(dim=(1, 2, 3))
    torch.testing.assert_close(flow.loss(fixed, **given), expected)


@every_flow
def test_the_true_prediction_has_no_loss(path: str, prediction: str) -> None:
    given, flow = batch(), InterpolantFlow(FlowConfig(path, prediction))

    def truth(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        here = PATHS[path].at(t[:, None, None, None])
        return {
            "velocity": here.dalpha * given["x"] + here.dsigma * given["noise"],
            "noise": given["noise"],
            "score": -given["noise"] / here.sigma,
        }[prediction]

    assert flow.loss(truth, **given).abs().max() < 1e-20


@every_flow
def test_loss_does_not_depend_on_batch_mates(path: str, prediction: str) -> None:
    given, flow = batch(), InterpolantFlow(FlowConfig(path, prediction))
    together = flow.loss(fixed, **given)
    for i in range(len(together)):
        alone = flow.loss(fixed, **{key: value[i : i + 1] for key, value in given.items()})
        torch.testing.assert_close(alone, together[i : i + 1])


@every_flow
@pytest.mark.parametrize("u", [0.0, 1 - 2**-24])
def test_loss_is_finite_at_both_ends_of_the_interval(path: str, prediction: str, u: float) -> None:
    weightings = ("none",) if prediction == "velocity" else ("none", "velocity", "likelihood")
    for weighting, sampling in product(weightings, ("uniform", "logit_normal")):
        flow = InterpolantFlow(FlowConfig(path, prediction, weighting, sampling))
        given = {key: value.to(torch.float32) for key, value in batch().items() if key != "y"}
        given |= {"y": torch.zeros(6, dtype=torch.long), "u": torch.full((6,), u)}
        assert flow.loss(fixed, **given).isfinite().all()


def test_loss_of_bfloat16_latents_is_float32() -> None:
    given, seen = batch(), {}
    for key in ("x", "noise", "u"):
        given[key] = given[key].to(torch.float32 if key == "u" else torch.bfloat16)

    def network(x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        seen.update(x_t=x_t.dtype, t=t.dtype)
        return x_t

    loss = InterpolantFlow(FlowConfig()).loss(network, **given)
    assert loss.dtype == torch.float32
    assert seen == {"x_t": torch.bfloat16, "t": torch.float32}


def test_uniform_times_fill_the_interval() -> None:
    flow = InterpolantFlow(FlowConfig(train_interval=(0.25, 0.75)))
    u = torch.tensor([0.0, 0.5, 1.0])
    assert flow.time(u).tolist() == [0.25, 0.5, 0.75]


def test_logit_normal_times_have_a_normal_logit() -> None:
    config = FlowConfig(time_sampling="logit_normal", logit_mean=-0.4, logit_std=1.5)
    u = (torch.arange(10_000, dtype=torch.float64) + 0.5) / 10_000
    t = InterpolantFlow(config).time(u)
    assert ((t > 0) & (t < 1)).all() and (t.diff() > 0).all()
    assert torch.logit(t).mean().item() == pytest.approx(-0.4, abs=1e-3)
    assert torch.logit(t).std().item() == pytest.approx(1.5, abs=1e-2)


class SmallNetwork(nn.Module):
    """Enough to remember a batch of eight images with one channel of 2 x 2."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(5, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU())
        self.last = nn.Linear(64, 4)

    def forward(self, x_t: Tensor, t: Tensor, y: Tensor) -> Tensor:
        features = torch.cat([x_t.flatten(1), t[:, None]], dim=1)
        return self.last(self.layers(features)).view_as(x_t)


@every_flow
def test_one_batch_can_be_learned_by_heart(path: str, prediction: str) -> None:
    flow, network = InterpolantFlow(FlowConfig(path, prediction)), SmallNetwork()
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    x, noise = torch.randn(2, 8, 1, 2, 2).unbind()
    u, y = torch.linspace(0.05, 0.85, 8), torch.zeros(8, dtype=torch.long)
    losses = []
    for _ in range(400):
        loss = flow.loss(network, x, y, noise, u).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.02 * losses[0]
