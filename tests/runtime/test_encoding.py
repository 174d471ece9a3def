"""What is encoded is the image that is named, as the autoencoder sees it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from runtime.autoencoder import Autoencoder, load_autoencoder
from runtime.encode_config import EncodeConfig
from runtime.encoding import EncodedShard, draft_passport, encode_shards
from runtime.errors import UserError
from runtime.images import center_crop, from_uint8
from runtime.scaling import Scaling
from runtime.sources import ImageSource, open_source

NUM_IMAGES = 7


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    random = np.random.default_rng(0)
    for index in range(NUM_IMAGES):
        path = tmp_path / "images" / "ab"[index % 2] / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (9 + index, 12, 3), np.uint8)).save(path)
    return tmp_path / "images"


def config(folder: Path, **changes: Any) -> EncodeConfig:
    settings = {"images": str(folder), "latents_dir": "", "autoencoder": "identity"}
    settings |= {"image_size": 8, "batch_size": 2, "shard_size": 3, "num_workers": 0}
    return EncodeConfig(**{**settings, **changes})


def encode(encode_config: EncodeConfig, encoder: Autoencoder) -> list[EncodedShard]:
    source = open_source(encode_config.images)
    passport = draft_passport(encode_config, source, encoder)
    cuts = dict(enumerate(passport.cuts))
    return list(encode_shards(encode_config, source, encoder, cuts, lambda count: None))


def joined(shards: list[EncodedShard]) -> dict[str, Tensor]:
    values = {name: torch.cat([s.values[name] for s in shards]) for name in shards[0].values}
    return values | {
        "label": torch.cat([s.labels for s in shards]),
        "id": torch.cat([s.ids for s in shards]),
    }


def pixels(source: ImageSource, size: int) -> Tensor:
    images = [np.asarray(center_crop(source.read(i), size)) for i in range(len(source))]
    return from_uint8(torch.from_numpy(np.stack(images)))


def test_ids_labels_and_pixels_belong_together(folder: Path) -> None:
    shards = encode(config(folder), load_autoencoder("identity"))
    assert [len(shard.ids) for shard in shards] == [3, 3, 1]
    records, source = joined(shards), open_source(str(folder))
    assert records["id"].tolist() == list(range(NUM_IMAGES))
    assert records["label"].tolist() == source.labels.tolist()
    assert torch.equal(records["moments"][:, :3], pixels(source, 8))


def test_batches_and_workers_do_not_matter(folder: Path) -> None:
    encoder = load_autoencoder("identity")
    expected = joined(encode(config(folder), encoder))
    for changes in ({"batch_size": 5}, {"num_workers": 2}, {"shard_size": 100}):
        found = joined(encode(config(folder, **changes), encoder))
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_mirrored_copy_is_encoded_from_the_mirrored_image(folder: Path) -> None:
    encoder = load_autoencoder("assets/digits_autoencoder")
    records = joined(encode(config(folder, image_size=16, batch_size=100), encoder))
    images = pixels(open_source(str(folder)), 16)[:3]  # the first shard
    expected = encoder.moments(images.flip(-1))
    torch.testing.assert_close(records["moments_mirrored"][:3], expected, rtol=0, atol=1e-5)
    assert (
        expected - encoder.moments(images).flip(-1)
    ).abs().max() > 0.01  # it is no mirrored latent


def test_latents_are_the_mean_of_the_moments(folder: Path) -> None:
    encoder = load_autoencoder("identity")
    moments = joined(encode(config(folder, mirrored_copies=False), encoder))
    latents = joined(encode(config(folder, kind="latents", mirrored_copies=False), encoder))
    assert torch.equal(latents["latents"], moments["moments"][:, :3])
    assert set(latents) == {"latents", "label", "id"}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_damaged_image_stops_it_by_name(folder: Path, num_workers: int) -> None:
    (folder / "b" / "3.png").write_bytes(b"damaged")
    with pytest.raises(UserError, match=r"b/3\.png") as raised:
        encode(config(folder, num_workers=num_workers), load_autoencoder("identity"))
    assert "\n" not in str(raised.value)


class Overflowing(nn.Module):
    """Latents that are pixels, but for one channel of the dark images."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.value = value

    def encode(self, images: Tensor) -> Any:
        dark = images.mean((1, 2, 3), keepdim=True) < -0.9
        encoded = type("Encoded", (), {})()
        encoded.latents = torch.where(dark, torch.full_like(images, self.value), images)
        return encoded


@pytest.mark.parametrize(("value", "dtype"), [(float("nan"), "float32"), (1e6, "float16")])
def test_undefined_latents_stop_it_by_name(folder: Path, value: float, dtype: str) -> None:
    Image.new("RGB", (8, 8)).save(folder / "a" / "4.png")
    encoder = replace(load_autoencoder("identity"), model=Overflowing(value))
    with pytest.raises(UserError, match=r"latents of a/4\.png"):
        encode(config(folder, dtype=dtype), encoder)


def test_image_size_has_to_fit_the_autoencoder(folder: Path) -> None:
    encoder = load_autoencoder("assets/digits_autoencoder")
    with pytest.raises(UserError, match="image_size 18 is not a multiple of 4"):
        draft_passport(config(folder, image_size=18), open_source(str(folder)), encoder)


def test_scaling_is_the_one_asked_for(folder: Path) -> None:
    source, plain = open_source(str(folder)), load_autoencoder("identity")
    stated = replace(plain, scaling=Scaling(mean=(0.0,) * 3, std=(2.0,) * 3))
    for encoder, scaling, expected in (
        (plain, "autoencoder", Scaling()),
        (plain, "scalar", Scaling()),
        (plain, "per_channel", None),  # to be measured
        (stated, "autoencoder", stated.scaling),
        (stated, "per_channel", stated.scaling),
    ):
        draft = draft_passport(config(folder, scaling=scaling), source, encoder)
        assert draft.scaling == expected
    with pytest.raises(UserError, match="states one per channel"):
        draft_passport(config(folder, scaling="scalar"), source, stated)
