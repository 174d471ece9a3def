"""`python -m tools.latents` proves a data set, or names what is wrong with it."""

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.errors import UserError
from runtime.passport import MANIFEST
from tools.latents import main

SHARD = "shard-00001.safetensors"


@pytest.fixture
def latents(make_latents: Any) -> Path:
    return make_latents()


def complaint(folder: Path) -> str:
    with pytest.raises(UserError) as raised:
        main(["verify", str(folder)])
    return str(raised.value)


def test_a_sound_data_set_is_sound(latents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["verify", str(latents)])
    assert "10 images in 3 shards, all sound" in capsys.readouterr().out


def test_describe_prints_the_passport(latents: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["describe", str(latents)])
    printed = capsys.readouterr().out
    for part in ("10 images of 3 classes", "some/autoencoder", "factor 0.5", "mirrored"):
        assert part in printed


@pytest.mark.parametrize("place", [0.0, 0.3, 0.6, 0.999])
def test_a_flipped_byte_is_found_anywhere(latents: Path, place: float) -> None:
    content = bytearray((latents / SHARD).read_bytes())
    content[int(place * len(content))] ^= 0x10
    (latents / SHARD).write_bytes(content)
    assert SHARD in complaint(latents)


def test_a_shard_of_another_data_set_is_found(latents: Path, make_latents: Any) -> None:
    """Even where the manifest was made to name it."""
    other = make_latents("other", image_size=64)
    (latents / SHARD).write_bytes((other / SHARD).read_bytes())
    assert SHARD in complaint(latents) and "SHA-256" in complaint(latents)
    manifests = [json.loads((folder / MANIFEST).read_text()) for folder in (latents, other)]
    manifests[0]["shards"][1] = manifests[1]["shards"][1]
    (latents / MANIFEST).write_text(json.dumps(manifests[0]))
    assert "was not made as the manifest says" in complaint(latents)


def test_statistics_of_other_latents_are_found(latents: Path) -> None:
    manifest = json.loads((latents / MANIFEST).read_text())
    (latents / MANIFEST).write_text(json.dumps(manifest | {"std": manifest["std"] * 1.01}))
    assert "std is" in complaint(latents)


def test_mistakes_name_the_verbs() -> None:
    for arguments in ([], ["verify"], ["prove", "x"]):
        with pytest.raises(UserError, match="describe"):
            main(arguments)
