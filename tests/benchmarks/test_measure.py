"""The measuring instruments themselves."""

import torch
from torch import Tensor, nn

from benchmarks.measure import peak_bytes, saved_bytes, time_in_turn

CPU = torch.device("cpu")


def test_cases_run_in_turn_and_the_first_is_the_unit() -> None:
    calls: list[str] = []
    cases = {name: lambda name=name: calls.append(name) for name in ("a", "b")}
    timings = time_in_turn(cases, rounds=3, max_seconds=60, device=CPU)
    assert calls == ["a", "b"] * 4  # once to warm up
    assert timings["a"].ratio == 1


def test_rounds_are_cut_to_the_time_there_is() -> None:
    calls: list[str] = []
    time_in_turn({"a": lambda: calls.append("a")}, rounds=50, max_seconds=1e-9, device=CPU)
    assert len(calls) == 2


def test_kept_are_inputs_and_not_parameters_each_storage_once() -> None:
    linear = nn.Linear(4, 4, bias=False)
    x = torch.randn(8, 4, requires_grad=True)

    def forward() -> Tensor:
        return linear(x) * x[:, :4]  # the product keeps x again, and what linear returned

    assert saved_bytes(forward, linear) == 2 * x.numel() * 4


def test_peak_is_what_a_case_holds_at_once() -> None:
    """Also where nothing is kept in the end."""
    held = peak_bytes(lambda: torch.ones(64, 1 << 20).sum(), CPU)
    assert 0.9 * 2**28 < held < 1.5 * 2**28
