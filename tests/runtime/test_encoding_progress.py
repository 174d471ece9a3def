"""The bar of one process counts the images of all."""

from pathlib import Path

import pytest

from runtime import encoding_progress
from runtime.encoding_progress import EncodingProgress


@pytest.fixture(autouse=True)
def _always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoding_progress, "LOOK_EVERY", -1.0)


def test_shards_of_others_count_when_they_are_written(tmp_path: Path) -> None:
    new, damaged, never = (tmp_path / name for name in ("new", "damaged", "never"))
    damaged.write_text("before")
    with EncodingProgress(20, {new: 4, damaged: 5, never: 6}, silent=False) as progress:
        progress(1)
        assert progress._bar.n == 1
        new.write_text("shard")
        progress(2)
        assert progress._bar.n == 1 + 2 + 4
        (tmp_path / "beside").write_text("whole")
        (tmp_path / "beside").replace(damaged)
        progress(2)
        progress(0)  # counted once
        assert progress._bar.n == 1 + 2 + 4 + 2 + 5
    assert progress._bar.n == 20


def test_after_an_error_nothing_is_claimed(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), EncodingProgress(9, {tmp_path: 4}, False) as progress:
        progress(1 // 0)
    assert progress._bar.n == 0


def test_it_is_silent_where_asked(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with EncodingProgress(5, {tmp_path / "x": 3}, silent=True) as progress:
        progress(2)
    assert capfd.readouterr().err == ""
