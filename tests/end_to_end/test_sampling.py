"""Image i depends on (seed, i), checkpoint and settings: not on batches, processes or crashes."""

import json

import numpy as np
import pytest
from PIL import Image

from runtime.errors import UserError
from sample import main as sample
from tools.inspect import main as inspect

SAMPLERS = {
    "DiT": {"deterministic": ["sampler.method=ddim"], "stochastic": ["sampler.method=ddpm"]},
    "SiT": {
        "deterministic": ["sampler.method=euler"],
        "stochastic": ["sampler.method=euler_maruyama"],
    },
}


@pytest.fixture(scope="module", params=["DiT", "SiT"])
def trained(request, program, train_config, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    config = train_config(request.param)
    program("train.py", config, f"output_dir={run_dir}", "num_steps=6", "lr=1e-2")
    return request.param, run_dir


def settings(output_dir, *more):
    return [
        f"output_dir={output_dir}", "num_images=11", "seed=5", "sampler.num_sampling_steps=4",
        "guidance.scale=1.5", *more,
    ]  # fmt: skip


def pixels(folder):
    return np.stack([np.asarray(Image.open(folder / "images" / f"{i:06d}.png")) for i in range(11)])


def assert_same_images(ours, expected):
    difference = np.abs(ours.astype(int) - expected.astype(int))
    assert difference.max() <= 1
    assert (difference > 0).mean() <= 0.001


@pytest.mark.parametrize("kind", ["deterministic", "stochastic"])
def test_images_do_not_depend_on_batches_processes_or_crashes(trained, kind, program, tmp_path):
    family, run_dir = trained
    method = SAMPLERS[family][kind]
    sample([str(run_dir), *settings(tmp_path / "a", *method, "batch_size=16")])
    expected = pixels(tmp_path / "a")
    assert len(np.unique(expected.reshape(11, -1), axis=0)) == 11

    sample([str(run_dir), *settings(tmp_path / "b", *method, "batch_size=3")])
    assert_same_images(pixels(tmp_path / "b"), expected)

    (tmp_path / "b" / "images" / "000004.png").unlink()  # as if killed before it was written
    kept = (tmp_path / "b" / "images" / "000005.png").stat().st_mtime_ns
    program("sample.py", run_dir, *settings(tmp_path / "b", *method, "batch_size=4"), processes=2)
    assert_same_images(pixels(tmp_path / "b"), expected)
    assert (tmp_path / "b" / "images" / "000005.png").stat().st_mtime_ns == kept
    with np.load(tmp_path / "b" / "samples.npz") as npz:
        assert npz.files == ["arr_0"]
        assert np.array_equal(npz["arr_0"], pixels(tmp_path / "b"))


def test_balanced_labels_go_round_and_another_seed_gives_other_images(trained, tmp_path):
    _, run_dir = trained
    sample([str(run_dir), *settings(tmp_path / "a", "labels=balanced")])
    sample([str(run_dir), *settings(tmp_path / "b", "labels=balanced", "seed=6")])
    labels = json.loads((tmp_path / "a" / "labels.json").read_text())
    assert labels["labels"] == [i % 3 for i in range(11)]
    assert labels["class_names"] == ["ant", "bee", "cat"]
    assert not np.array_equal(pixels(tmp_path / "a"), pixels(tmp_path / "b"))


def test_raw_and_averaged_weights_give_other_images(trained, tmp_path):
    _, run_dir = trained
    sample([str(run_dir), *settings(tmp_path / "ema")])
    sample([str(run_dir), *settings(tmp_path / "raw", "weights=raw")])
    assert not np.array_equal(pixels(tmp_path / "ema"), pixels(tmp_path / "raw"))


def test_the_settings_say_what_the_images_depend_on(trained, tmp_path):
    family, run_dir = trained
    sample([str(run_dir), *settings(tmp_path / "a")])
    stated = json.loads((tmp_path / "a" / "settings.json").read_text())
    assert stated["model"] == f"{family}-XXS/2"
    assert stated["guidance"]["scale"] == 1.5
    assert stated["sampler"]["num_sampling_steps"] == 4
    assert stated["rounding"] == "nearest"
    assert stated["autoencoder"]["name"] == "identity"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("classes=[3]", "3 is no class; the checkpoint has classes 0 to 2"),
        ("sampler.methd=ddim", "unknown key 'sampler.methd'; did you mean 'sampler.method'"),
        ("sampler.num_sampling_steps=many", "is not a whole number"),
        ("autoencoder=/nowhere/at/all", "/nowhere/at/all"),
        ("weights=best", "weights = 'best' is not allowed"),
        ("classes=[]", "leaves no class to draw"),
        ("guidance.guided_channels=9", "the latents have 3 channels"),
    ],
)
def test_a_mistake_costs_one_line_and_writes_nothing(trained, override, message, tmp_path):
    _, run_dir = trained
    with pytest.raises(UserError, match=message):
        sample([str(run_dir), f"output_dir={tmp_path}/none", override])
    assert not (tmp_path / "none").exists()


def test_guidance_without_label_drop_is_refused(program, train_config, tmp_path):
    program(
        "train.py", train_config("SiT"), f"output_dir={tmp_path}/run", "num_steps=1", "label_drop=0"
    )
    with pytest.raises(UserError, match="label_drop = 0"):
        sample([str(tmp_path / "run"), "guidance.scale=2"])


def test_a_folder_with_another_runs_images_is_refused(trained, tmp_path):
    _, run_dir = trained
    sample([str(run_dir), *settings(tmp_path / "a")])
    with pytest.raises(UserError, match="holds images of another run \\(seed was 5, is 6\\)"):
        sample([str(run_dir), *settings(tmp_path / "a", "seed=6")])


def test_maps_of_every_block_and_head_are_drawn(trained, tmp_path):
    _, run_dir = trained
    settings = [f"output_dir={tmp_path}/maps", "call=2", "tile_size=16", "query=[0,3]"]
    inspect([str(run_dir), *settings])
    for stage in ("stage1", "importance", "stage2"):
        assert Image.open(tmp_path / "maps" / f"{stage}.png").size[1] > 2 * 16
    with pytest.raises(UserError, match=r"query = \[4, 0\] is outside the token grid: rows 0 to 3"):
        inspect([str(run_dir), f"output_dir={tmp_path}/none", "query=[4,0]"])
    with pytest.raises(UserError, match=r"call = 9999, but the sampler made \d+ calls"):
        inspect([str(run_dir), f"output_dir={tmp_path}/none", "call=9999"])
    assert not (tmp_path / "none").exists()


def test_a_preset_is_the_published_protocol_and_is_recorded(trained, tmp_path):
    family, run_dir = trained
    preset, method = {"DiT": ("dit-paper", "ddpm"), "SiT": ("sit-paper-sde", "euler_maruyama")}[
        family
    ]
    overrides = [f"preset={preset}", "sampler.num_sampling_steps=3", "num_images=2"]
    sample([str(run_dir), f"output_dir={tmp_path}/a", *overrides])
    stated = json.loads((tmp_path / "a" / "settings.json").read_text())
    assert stated["preset"] == preset
    assert stated["sampler"]["method"] == method
    assert stated["sampler"]["num_sampling_steps"] == 3  # keys go before the preset
    assert stated["guidance"]["guided_channels"] == 3
    other = {"DiT": "sit-paper-ode", "SiT": "dit-paper"}[family]
    with pytest.raises(UserError, match=f"preset = {other} is for"):
        sample([str(run_dir), f"output_dir={tmp_path}/b", f"preset={other}"])
