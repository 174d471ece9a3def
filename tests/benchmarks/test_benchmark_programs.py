"""The benchmark programs at toy size: what they count, leave out and write. Not how fast."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.attention import LAYERS
from benchmarks.attention import main as attention
from benchmarks.model import main as model
from runtime.errors import UserError


def results(folder: Path) -> list[dict[str, Any]]:
    return json.loads((folder / "results.json").read_text())["results"]


def small(folder: Path, *arguments: str) -> list[str]:
    return ["precisions=[fp32]", "rounds=1", f"output_dir={folder}", *arguments]


def test_every_layer_is_measured_beside_softmax(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    attention(small(tmp_path, "tokens=[16,64]", "sizes=[XXS]", "peaks=false"))
    found = results(tmp_path)
    assert [r["case"]["name"] for r in found] == 2 * list(LAYERS)
    assert all(r["training"]["ratio"] == 1 for r in found if r["case"]["name"] == "softmax")
    assert (tmp_path / "XXS_fp32.png").stat().st_size > 10_000
    table = capsys.readouterr().out
    assert all(f"| {name} " in table for name in LAYERS)


def test_counted_macs_stand_beside_the_times(tmp_path: Path) -> None:
    attention(
        small(tmp_path, "tokens=[64]", "sizes=[S]", "attentions=[vca,vca-maps]", "peaks=false")
    )
    macs = {r["case"]["name"]: r["macs"] for r in results(tmp_path)}
    tokens, dim, contrast = 64, 384, 16
    dense, conv = 4 * tokens * dim**2, 9 * tokens * dim
    assert macs == {
        "softmax": dense + 2 * tokens**2 * dim,
        "vca": dense + 8 * contrast * tokens * dim + conv,
        "vca-maps": dense + 7 * contrast * tokens * dim + conv,
    }


def test_what_would_take_too_long_is_left_out_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tokens=[16,256]", "sizes=[XXS]", "attentions=[vca]", "peaks=false"]
    attention(small(tmp_path, *arguments, "max_seconds_per_call=1e-9"))
    assert {r["case"]["tokens"] for r in results(tmp_path)} == {16}
    assert "vca at 256 tokens left out" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("tokens=[60]", "tokens = 60 is not a square number"),
        ("attentions=[vcaa]", "did you mean 'vca'"),
        ("sizes=[]", r"sizes = \[\] leaves nothing to measure"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, argument: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        attention(small(tmp_path / "none", argument))
    assert not (tmp_path / "none").exists()


def test_no_number_of_tokens_is_dropped_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["tokens=[16,64,256]", "sizes=[XXS]", "attentions=[vca]", "peaks=false"]
    attention(small(tmp_path, *arguments, "max_seconds_per_call=1e-9"))
    printed = capsys.readouterr().out
    assert all(f"all layers at {tokens} tokens left out" in printed for tokens in (64, 256))


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("models=[]", r"models = \[\] leaves nothing to measure"),
        ("image_sizes=[64,100]", "image_size 100 is not divisible"),
    ],
)
def test_networks_that_cannot_be_are_refused_before_any_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], argument: str, message: str
) -> None:
    with pytest.raises(UserError, match=message):
        model(small(tmp_path / "none", "models=[DiT-XXS/2]", argument))
    assert not (tmp_path / "none").exists()
    assert "training step" not in capsys.readouterr().out


def test_a_batch_may_be_larger_than_the_number_of_classes(tmp_path: Path) -> None:
    keys = "models=[DiT-XXS/2]", "image_sizes=[16]", "attentions=[]", "compile=false", "batch=4"
    model(small(tmp_path, *keys))
    assert results(tmp_path)[0]["batch"] == 1024


@pytest.mark.parametrize("name", ["DiT-XXS/2", "SiT-XXS/2"])
def test_whole_networks_are_measured(tmp_path: Path, name: str) -> None:
    model(
        small(
            tmp_path,
            f"models=[{name}]",
            "image_sizes=[64]",
            "compile=false",
            "batch=1",
            "attentions=[vca,vca-paper]",
        )
    )
    found = results(tmp_path)
    assert [r["attention"] for r in found] == ["softmax", "vca", "vca-paper"]
    # With a quarter as many contrast tokens as tokens the core costs the same by fused calls.
    assert found[0]["macs"] == found[2]["macs"] < found[1]["macs"]
