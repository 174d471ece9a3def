"""`python -m tools.latents` on a sound data set; on a damaged one, see test_latent_damage.py."""

from pathlib import Path
from typing import Any

import pytest

from runtime.errors import UserError
from tools.latents import main


@pytest.fixture
def latents(make_latents: Any) -> Path:
    return make_latents()


def test_a_sound_data_set_is_sound(latents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", str(latents)])
    assert "10 images in 3 shards, all sound" in capsys.readouterr().out


def test_describe_prints_the_passport(latents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe", str(latents)])
    printed = capsys.readouterr().out
    for part in ("10 images of 3 classes", "some/autoencoder", "factor 0.5", "mirrored"):
        assert part in printed


def test_mistakes_name_the_verbs() -> None:
    for arguments in ([], ["verify"], ["prove", "x"]):
        with pytest.raises(UserError, match="describe"):
            main(arguments)
