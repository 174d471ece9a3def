"""What is encoded is the image that is named, as the autoencoder sees it."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from odd_images import DAMAGED, NUM_READABLE, write_odd_images
from PIL import Image
from torch import Tensor, nn

from runtime.autoencoder import Autoencoder, load_autoencoder
from runtime.encode_config import EncodeConfig
from runtime.encoding import EncodedShard, draft_passport, encode_shards, notices
from runtime.errors import UserError
from runtime.image_source import ImageSource
from runtime.images import center_crop, from_uint8
from runtime.latent_writer import LatentWriter
from runtime.latents import LatentDataset
from runtime.passport import DTYPES, Passport
from runtime.scaling import Scaling
from runtime.sources import open_source
from tools.latents import main as verify_latents

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


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_skipped_image_leaves_the_others_as_they_are(folder: Path, num_workers: int) -> None:
    encoder = load_autoencoder("assets/digits_autoencoder")
    settings = {"image_size": 16, "num_workers": num_workers, "on_bad_image": "skip"}
    whole = joined(encode(config(folder, **settings), encoder))
    # The first of a batch, so that the second has to keep its own latents.
    (folder / "a" / "6.png").write_bytes(b"damaged")
    shards = encode(config(folder, **settings), encoder)
    records, names = joined(shards), open_source(str(folder)).names
    bad = names.index("a/6.png")
    skipped = [image for shard in shards for image in shard.skipped]
    assert [(image.id, image.label, image.name) for image in skipped] == [(bad, 0, "a/6.png")]
    kept = torch.arange(NUM_IMAGES) != bad
    assert records["id"].tolist() == [i for i in range(NUM_IMAGES) if i != bad]
    assert all(torch.equal(records[name], whole[name][kept]) for name in whole)


def test_what_odd_files_become_depends_on_nothing_else(tmp_path: Path) -> None:
    encoder = load_autoencoder("identity")
    folder = write_odd_images(tmp_path / "odd")
    reverse = write_odd_images(tmp_path / "reverse", lambda names: names[::-1])
    settings = {"on_bad_image": "skip", "kind": "latents"}
    expected = encode(config(folder, **settings), encoder)
    skipped = [image for shard in expected for image in shard.skipped]
    assert sorted(image.name for image in skipped) == sorted(DAMAGED)
    for images, changes in (
        (reverse, {"batch_size": 1}),
        (folder, {"batch_size": 50, "shard_size": 50, "num_workers": 2}),
    ):
        shards = encode(config(images, **settings, **changes), encoder)
        assert [image for shard in shards for image in shard.skipped] == skipped
        found, records = joined(shards), joined(expected)
        assert len(found["id"]) == NUM_READABLE
        assert all(torch.equal(found[name], records[name]) for name in records)


def test_a_missing_file_stops_it_even_where_images_may_be_skipped(folder: Path) -> None:
    """A disk that is gone is no folder of bad images."""
    (folder / "b" / "3.png").unlink()
    (folder / "b" / "3.png").symlink_to("nowhere.png")
    with pytest.raises(UserError, match=r"b/3\.png: No such file"):
        encode(config(folder, on_bad_image="skip"), load_autoencoder("identity"))


def written(encode_config: EncodeConfig, folder: Path) -> Passport:
    encoder, source = load_autoencoder("identity"), open_source(encode_config.images)
    draft = draft_passport(encode_config, source, encoder)
    writer = LatentWriter(folder, draft)
    cuts = {shard: ids for shard, ids in enumerate(draft.cuts) if not writer.has(shard)}
    for shard in encode_shards(encode_config, source, encoder, cuts, lambda count: None):
        writer.write(shard.number, shard.values, shard.labels, shard.ids, shard.skipped)
    writer.finish()
    return LatentDataset(folder).passport


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_passport_states_the_error_of_the_cast(
    folder: Path, tmp_path: Path, dtype: str
) -> None:
    passport = written(config(folder, dtype=dtype, scaling="per_channel"), tmp_path / "latents")
    images = pixels(open_source(str(folder)), 8)
    versions = torch.cat([images, images.flip(-1)])
    std = torch.tensor(passport.scaling.std)[:, None, None]
    moved = (versions.to(DTYPES[dtype]).float() - versions).double() / std
    assert passport.cast_error_max == pytest.approx(float(moved.abs().max()), rel=1e-6)
    assert passport.cast_error_rms == pytest.approx(float(moved.square().mean().sqrt()), rel=1e-6)
    assert (passport.cast_error_max > 0) == (dtype != "float32")


def test_a_data_set_with_skipped_images_counts_itself(folder: Path, tmp_path: Path) -> None:
    (folder / "b" / "3.png").write_bytes(b"damaged")
    (folder / "b" / "5.png").write_bytes(b"")
    skipping = config(folder, on_bad_image="skip", shard_size=2)
    passport = written(skipping, tmp_path / "latents")
    assert passport.num_images == NUM_IMAGES - 2 and sum(passport.label_histogram) == 5
    assert [image.name for image in passport.skipped] == ["b/3.png", "b/5.png"]
    assert "5 images (2 more skipped) of 2 classes" in str(passport)
    dataset, names = LatentDataset(tmp_path / "latents"), open_source(str(folder)).names
    assert [names[i] for i in dataset.ids] == [n for n in names if n not in ("b/3.png", "b/5.png")]
    verify_latents(["verify", str(tmp_path / "latents")])

    before = contents(tmp_path / "latents")
    assert written(skipping, tmp_path / "latents") == passport  # continued, nothing to do
    (tmp_path / "latents" / "shard-00002.safetensors").unlink()
    assert written(skipping, tmp_path / "latents") == passport
    assert contents(tmp_path / "latents") == before


def test_it_can_be_killed_while_it_writes_its_draft(folder: Path, tmp_path: Path) -> None:
    written(config(folder), tmp_path / "expected")
    (tmp_path / "latents").mkdir()
    (tmp_path / "latents" / ".draft.json.part").write_text('{"kin')
    written(config(folder), tmp_path / "latents")
    assert contents(tmp_path / "latents") == contents(tmp_path / "expected")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_a_shard_of_other_images_is_not_kept(folder: Path, tmp_path: Path) -> None:
    source, encoder = open_source(str(folder)), load_autoencoder("identity")
    written(config(folder, shard_size=2), tmp_path / "latents")
    writer = LatentWriter(
        tmp_path / "latents", draft_passport(config(folder, shard_size=2), source, encoder)
    )
    assert all(writer.has(shard) for shard in range(4))
    shutil.copy(writer.path(0), writer.path(1))  # the same recipe, other images
    assert writer.has(0) and not writer.has(1)
    (folder / "a" / "0.png").rename(folder / "a" / "9.png")
    with pytest.raises(UserError, match="images_sha256"):
        written(config(folder, shard_size=2), tmp_path / "latents")


def test_only_whole_shards_do_where_no_image_may_be_skipped(folder: Path, tmp_path: Path) -> None:
    good = (folder / "b" / "3.png").read_bytes()
    (folder / "b" / "3.png").write_bytes(b"damaged")
    skipping = config(folder, on_bad_image="skip")
    written(skipping, tmp_path / "latents")
    (folder / "b" / "3.png").write_bytes(good)
    draft = draft_passport(skipping, open_source(str(folder)), load_autoencoder("identity"))
    writer = LatentWriter(tmp_path / "latents", draft)
    assert [writer.has(shard) for shard in range(3)] == [True, True, True]
    assert [writer.has(shard, whole=True) for shard in range(3)] == [True, False, True]


def test_a_data_set_of_nothing_is_refused(folder: Path, tmp_path: Path) -> None:
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(UserError, match=r"all 7 images were skipped.*a/0\.png: the file is empty"):
        written(config(folder, on_bad_image="skip"), tmp_path / "latents")


def test_notices_say_what_looks_wrong(folder: Path, tmp_path: Path) -> None:
    shutil.rmtree(folder / "b")
    Image.new("RGB", (8, 8), (128, 128, 128)).save(folder / "a" / "flat.png")
    for path in (folder / "a").glob("[0-9]*.png"):
        path.unlink()
    (folder / "b").mkdir()
    (folder / "b" / "1.png").write_bytes(b"damaged")
    plain = config(folder, on_bad_image="skip")
    passport = written(plain, tmp_path / "latents")
    found = notices(plain, load_autoencoder("identity"), passport)
    for part in ("no posterior", "standard deviation of", "1 of 2 classes have no image"):
        assert any(part in notice for notice in found)


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
