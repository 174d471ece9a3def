"""Every family of autoencoder: latents and back, its scaling from its own config, offline."""

import json
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch

from runtime.autoencoder import Autoencoder, load_autoencoder
from runtime.errors import UserError
from runtime.scaling import Scaling

CONV = {
    "down_block_types": ("DownEncoderBlock2D",) * 2,
    "up_block_types": ("UpDecoderBlock2D",) * 2,
}
DC = {
    "encoder_block_out_channels": (8, 8, 16),
    "decoder_block_out_channels": (8, 8, 16),
    "encoder_layers_per_block": (1, 1, 1),
    "decoder_layers_per_block": (1, 1, 1),
    "encoder_block_types": "ResBlock",
    "decoder_block_types": "ResBlock",
    "encoder_qkv_multiscales": ((), (), ()),
    "decoder_qkv_multiscales": ((), (), ()),
}
TINY = {
    "encoder_block_out_channels": (8, 8, 8),
    "decoder_block_out_channels": (8, 8, 8),
    "num_encoder_blocks": (1, 1, 1),
    "num_decoder_blocks": (1, 1, 1),
}
KL = {**CONV, "block_out_channels": (4, 8), "norm_num_groups": 2}
F8 = {  # the depth of the Stable Diffusion autoencoders
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "up_block_types": ("UpDecoderBlock2D",) * 4,
    "block_out_channels": (4, 4, 4, 4),
    "norm_num_groups": 2,
    "layers_per_block": 1,
}
NO_QUANT = {"use_quant_conv": False, "use_post_quant_conv": False}
F16 = {key: value[:1] * 5 for key, value in F8.items() if isinstance(value, tuple)}
STATISTICS = [0.1 * i for i in range(1, 33)]

# family, settings, scaling, downsampling, latent channels
FAMILIES = {
    "kl": ("AutoencoderKL", {**KL, "scaling_factor": 0.3}, Scaling(0.3), 2, 4),
    "kl_with_shift": (
        "AutoencoderKL",
        {**KL, "latent_channels": 16, "scaling_factor": 1.5, "shift_factor": 0.06},
        Scaling(1.5, 0.06),
        2,
        16,
    ),
    "kl_per_channel": (
        "AutoencoderKL",
        {**KL, "scaling_factor": 0.5, "latents_mean": [0, 1, 2, 3], "latents_std": [1, 2, 3, 4]},
        Scaling(0.5, 0.0, (0.0, 1.0, 2.0, 3.0), (1.0, 2.0, 3.0, 4.0)),
        2,
        4,
    ),
    "dc": (
        "AutoencoderDC",
        {**DC, "latent_channels": 8, "attention_head_dim": 8, "scaling_factor": 0.41},
        Scaling(0.41),
        4,
        8,
    ),
    "tiny": ("AutoencoderTiny", TINY, Scaling(1.0), 4, 4),
    # The published ones in depth, channels and scaling, with few features.
    "sd": ("AutoencoderKL", {**F8, "scaling_factor": 0.18215}, Scaling(0.18215), 8, 4),
    "sdxl": (
        "AutoencoderKL",
        {**F8, "scaling_factor": 0.13025, "force_upcast": True},
        Scaling(0.13025),
        8,
        4,
    ),
    "sd3": (
        "AutoencoderKL",
        {
            **F8,
            **NO_QUANT,
            "latent_channels": 16,
            "scaling_factor": 1.5305,
            "shift_factor": 0.0609,
            "force_upcast": True,
        },
        Scaling(1.5305, 0.0609),
        8,
        16,
    ),
    "va_vae": (
        "AutoencoderKL",
        {
            **F8,
            **F16,
            "latent_channels": 32,
            "scaling_factor": 1.0,
            "latents_mean": STATISTICS,
            "latents_std": STATISTICS,
        },
        Scaling(1.0, 0.0, tuple(STATISTICS), tuple(STATISTICS)),
        16,
        32,
    ),
    "dc_f32c32": (
        "AutoencoderDC",
        {
            **{key: value[:1] * 6 for key, value in DC.items() if isinstance(value, tuple)},
            "encoder_block_out_channels": (4, 4, 4, 8, 16, 32),
            "decoder_block_out_channels": (4, 4, 4, 8, 16, 32),
            "latent_channels": 32,
            "attention_head_dim": 4,
            "scaling_factor": 0.3189,
        },
        Scaling(0.3189),
        32,
        32,
    ),
    "taesd": (
        "AutoencoderTiny",
        {
            "encoder_block_out_channels": (4, 4, 4, 4),
            "decoder_block_out_channels": (4, 4, 4, 4),
            "num_encoder_blocks": (1, 1, 1, 1),
            "num_decoder_blocks": (1, 1, 1, 1),
            "scaling_factor": 1.0,
            "shift_factor": 0.0,
        },
        Scaling(1.0),
        8,
        4,
    ),
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Any:
    return FAMILIES[request.param]


@pytest.fixture(scope="module")
def folder(family: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("autoencoder")
    getattr(diffusers, family[0])(**family[1]).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def autoencoder(folder: Path) -> Autoencoder:
    return load_autoencoder(str(folder))


SIZE = (32, 64)  # pixels: a multiple of every downsampling


def images(count: int = 3) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.rand(count, 3, *SIZE, generator=generator) * 2 - 1


def test_what_its_config_says(autoencoder: Autoencoder, family: Any) -> None:
    _, _, scaling, downsampling, latent_channels = family
    assert autoencoder.scaling == scaling
    assert autoencoder.downsampling == downsampling
    assert autoencoder.latent_channels == latent_channels


def test_shapes_and_dtypes(autoencoder: Autoencoder) -> None:
    moments = autoencoder.moments(images())
    rows, columns = (pixels // autoencoder.downsampling for pixels in SIZE)
    assert moments.shape == (3, 2 * autoencoder.latent_channels, rows, columns)
    assert moments.dtype == torch.float32
    log_variance = moments.chunk(2, dim=1)[1]
    assert log_variance.min() >= -30 and log_variance.max() <= 20
    assert bool((log_variance == -30).all()) != autoencoder.has_posterior
    assert autoencoder.decode(moments.chunk(2, 1)[0], Scaling(), 2).shape == (3, 3, *SIZE)


def test_decoding_undoes_the_scaling(autoencoder: Autoencoder) -> None:
    latents = autoencoder.moments(images()).chunk(2, dim=1)[0]
    plain = autoencoder.decode(latents, Scaling(), 8)
    scaling = Scaling(0.3, 0.2)
    scaled = autoencoder.decode(scaling.normalise(latents), scaling, 8)
    torch.testing.assert_close(scaled, plain, rtol=1e-4, atol=1e-4)


def test_decode_batch_size_changes_memory_alone(autoencoder: Autoencoder) -> None:
    latents = autoencoder.moments(images(5)).chunk(2, dim=1)[0]
    sizes: list[int] = []
    decode = autoencoder.model.decode

    def counted(part: torch.Tensor) -> Any:
        sizes.append(len(part))
        return decode(part)

    autoencoder.model.decode = counted
    try:
        one_by_two = autoencoder.decode(latents, Scaling(), 2)
    finally:
        autoencoder.model.decode = decode
    assert sizes == [2, 2, 1]
    torch.testing.assert_close(
        one_by_two, autoencoder.decode(latents, Scaling(), 5), rtol=1e-4, atol=1e-5
    )


def test_identity_is_that_of_the_weights(folder: Path, tmp_path: Path) -> None:
    here = load_autoencoder(str(folder)).identity
    copy = tmp_path / "elsewhere"
    copy.mkdir()
    for path in folder.iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    assert load_autoencoder(str(copy)).identity.is_same_as(here)
    weights = bytearray((copy / "diffusion_pytorch_model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "diffusion_pytorch_model.safetensors").write_bytes(weights)
    assert not load_autoencoder(str(copy)).identity.is_same_as(here)


def test_pixels_as_latents() -> None:
    identity = load_autoencoder("identity")
    mean, log_variance = identity.moments(images()).chunk(2, dim=1)
    assert torch.equal(mean, images()) and (log_variance == -30).all()
    assert torch.equal(identity.decode(mean, identity.scaling, 2), images())
    assert identity.downsampling == 1 and identity.latent_channels == 3


def test_a_scaling_per_channel_without_factor_has_factor_one(tmp_path: Path) -> None:
    kind, settings, *_ = FAMILIES["kl_per_channel"]
    getattr(diffusers, kind)(**settings).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["scaling_factor"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert load_autoencoder(str(tmp_path)).scaling.factor == 1.0


def test_one_that_overflows_in_fp16_is_refused_there_alone(tmp_path: Path) -> None:
    kind, settings, *_ = FAMILIES["sdxl"]
    getattr(diffusers, kind)(**settings).save_pretrained(tmp_path)
    assert load_autoencoder(str(tmp_path), dtype=torch.bfloat16).dtype == torch.bfloat16
    with pytest.raises(UserError, match=r"overflows in fp16.*force_upcast"):
        load_autoencoder(str(tmp_path), dtype=torch.float16)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"force_upcast": False}))
    assert load_autoencoder(str(tmp_path), dtype=torch.float16).dtype == torch.float16


def test_without_a_word_about_scaling_diffusers_own_holds(tmp_path: Path) -> None:
    """The published ft-EMA and ft-MSE autoencoders say nothing in their config."""
    kind, settings, *_ = FAMILIES["sd"]
    getattr(diffusers, kind)(**settings).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key in ("scaling_factor", "shift_factor", "latents_mean", "latents_std", "force_upcast"):
        del config[key]
    (tmp_path / "config.json").write_text(json.dumps(config))
    autoencoder = load_autoencoder(str(tmp_path), dtype=torch.float16)
    assert autoencoder.scaling == Scaling(0.18215)


@pytest.mark.parametrize("missing", ["config.json", "diffusion_pytorch_model.safetensors"])
def test_an_incomplete_folder_says_what_is_missing(
    folder: Path, tmp_path: Path, missing: str
) -> None:
    for path in folder.iterdir():
        if path.name != missing:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(UserError, match=missing):
        load_autoencoder(str(tmp_path))


def test_a_class_that_is_not_supported_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"_class_name": "UNet2DModel"}')
    with pytest.raises(UserError, match="UNet2DModel"):
        load_autoencoder(str(tmp_path))


def test_nothing_touches_the_network(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **keywords: object) -> None:
        raise AssertionError("the network was asked")

    import socket

    import huggingface_hub.constants

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    load_autoencoder(str(folder))
    with pytest.raises(
        UserError, match=r"hf download owner/name --revision v1.*HF|HF.*hf download"
    ):
        load_autoencoder("owner/name", revision="v1")
    for name in ("nowhere", "/no/such/folder", "./no"):
        with pytest.raises(UserError, match="no such folder"):
            load_autoencoder(name)
