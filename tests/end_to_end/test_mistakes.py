"""A user's mistake costs one line and a status, before anything is written."""

import re
import shutil

import pytest

from encode_latents import main as encode
from eval_fid import main as evaluate
from runtime.errors import UserError
from train import main as train


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lrr=1e-4", r"unknown key 'lrr'; did you mean 'lr'\?"),
        ("vca.varient=paper", r"unknown key 'vca.varient'; did you mean 'vca.variant'\?"),
        ("process.path=linear", r"unknown key 'process.path'"),  # SiT's, and this is a DiT
        ("vca.variant=papr", r"'papr' is not allowed; did you mean 'paper'\?"),
        ("lr=fast", r"lr = 'fast' is not a number"),
        ("num_steps=1e3", r"num_steps = '1e3' is not a whole number"),
        ("model=DiT-S/3", r"unknown model 'DiT-S/3'; did you mean"),
        ("attention=sofmax", r"'sofmax' is not allowed; did you mean 'softmax'\?"),
        ("ema.decay=1", r"ema.decay = 1.0 is not allowed"),
        ("latents_dir=/nowhere/at/all", r"/nowhere/at/all"),
        ("num_classes=2", r"num_classes: the latents .* have 3, the config 2"),
        (
            "image_size=16",
            r"latent shape: the latents .* have \(3, 8, 8\), the config \(3, 16, 16\)",
        ),
        ("latent_channels=4", r"latent shape: .* the config \(4, 8, 8\)"),
        ("downsampling=3", r"image_size 8 is not divisible by downsampling 3"),
        ("model=DiT-XXS/8 image_size=4", r"latent shape"),
        ("global_batch_size=28", r"27 images, fewer than global_batch_size 28"),
        ("micro_batch_size=3", r"micro_batch_size = 3 does not divide the 8 images per process"),
        ("vca.pooled_grid=[9,9]", r"pooled_grid \(9, 9\) is larger"),
        ("process.variance=fixed_small learned_variance=true", r"learned_variance=false"),
        ("sampler.num_sampling_steps=5000", r"5000"),
        ("sampler.eta=0.5", r"eta = 0.5 has no effect"),
        ("precision=fp16", r"fp16 needs a GPU"),
        ("precision=tf32", r"tf32 needs a GPU"),
        ("model.depth=12", r"unknown model"),
        ("vca.pooled_grid=[8,8", r"is not a list"),
        ("vca.pooled_grid=[{a:1},8]", r"vca.pooled_grid"),
        ("guidance.scale=-1", r"guidance.scale = -1.0 is not allowed"),
        ("guidance.interval=[1,0]", r"has to be \[low, high\]"),
        (f"seed={2**64}", r"seed = .* is not allowed"),
    ],
)
def test_training_refuses_before_it_writes(train_config, tmp_path, override, message):
    arguments = [str(train_config("DiT")), f"output_dir={tmp_path}/run", *override.split()]
    with pytest.raises(UserError, match=message) as caught:
        train(arguments)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "run").exists()


def test_another_precision_in_the_launcher_is_an_error(train_config, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    with pytest.raises(UserError, match=r"precision = fp32, but the launcher asks for .* bf16"):
        train([str(train_config("DiT")), f"output_dir={tmp_path}/run"])


def test_a_batch_that_processes_cannot_share_is_an_error(program, train_config, tmp_path):
    finished = program(
        "train.py", train_config("SiT"), f"output_dir={tmp_path}/run", "global_batch_size=9",
        processes=2, status=None,
    )  # fmt: skip
    assert finished.returncode != 0
    assert "global_batch_size = 9 is not divisible by 2 processes" in finished.stderr
    assert not (tmp_path / "run").exists()


def test_damaged_latents_are_refused(train_config, latents, tmp_path):
    broken = shutil.copytree(latents, tmp_path / "latents")
    shard = next(broken.glob("shard-*.safetensors"))
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(UserError, match=shard.name):
        train([str(train_config("SiT")), f"output_dir={tmp_path}/run", f"latents_dir={broken}"])
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("images=/nowhere/at/all", r"/nowhere/at/all"),
        ("image_sise=8", r"unknown key 'image_sise'; did you mean 'image_size'\?"),
        ("dtype=float8", r"dtype = 'float8' is not allowed"),
        ("autoencoder=/nowhere/at/all", r"/nowhere/at/all"),
        ("batch_size=0", r"batch_size = 0 is not allowed"),
    ],
)
def test_encoding_refuses_before_it_writes(images, tmp_path, override, message):
    config = tmp_path / "encode.yaml"
    config.write_text(f"images: {images}\nautoencoder: identity\nimage_size: 8\n")
    with pytest.raises(UserError, match=message):
        encode([str(config), f"latents_dir={tmp_path}/latents", override])
    assert not (tmp_path / "latents").exists()


def test_scoring_refuses_before_it_writes(tmp_path):
    for arguments, message in (
        (["/nowhere/at/all", "reference=digits/train", "extractor=digits"], "/nowhere/at/all"),
        (["/nowhere/at/all"], "reference is not set"),
        (["/nowhere/at/all", "referense=x"], "did you mean 'reference'"),
    ):
        with pytest.raises(UserError, match=message):
            evaluate([*arguments, f"output={tmp_path}/result.json"])
    assert not (tmp_path / "result.json").exists()


@pytest.mark.parametrize("script", ["train.py", "encode_latents.py", "sample.py", "eval_fid.py"])
def test_on_the_command_line_a_mistake_is_one_line_and_a_status(program, script):
    finished = program(script, "configs/nothing.yaml", "keey=1", status=2)
    (line,) = finished.stderr.strip().splitlines()
    assert re.match(r"error: .*(nothing|keey)", line)
    assert finished.stdout == ""


@pytest.mark.parametrize("script", ["train.py", "encode_latents.py", "sample.py", "eval_fid.py"])
def test_help_lists_the_keys(program, script):
    shown = program(script, "--help").stdout
    assert "precision" in shown or "reference" in shown
    assert "key=value" in shown
