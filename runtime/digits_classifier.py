"""A small classifier of the bundled digits, the judge of the demo.

Its scores compare demo runs with one another and with nothing else: the features are 64 numbers of
a network that has seen 1,498 digits. They have taps of their own names, so no metric called FID can
be computed from them.
"""

import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from runtime.errors import UserError
from runtime.images import from_uint8

BUNDLED = Path(__file__).parents[1] / "assets" / "digits_classifier"
IMAGE_SIZE = 32
NUM_FEATURES = 64


class DigitsClassifier(nn.Module):
    """Logits of the ten digits from 32 x 32 RGB images in [-1, 1]."""

    def __init__(self) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            *_stage(3, 24, stride=2),                       # 16 x 16
            *_stage(24, 48), nn.MaxPool2d(2),               # 8 x 8
            *_stage(48, 64), nn.MaxPool2d(2), nn.Flatten(),  # 4 x 4
        )  # fmt: skip
        self.hidden = nn.Linear(64 * 4 * 4, NUM_FEATURES)
        self.output = nn.Linear(NUM_FEATURES, 10)

    def features(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch features"]:
        """The layer before the logits."""
        return self.hidden(self.convolutions(images)).relu()

    def forward(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, "batch classes"]:
        return self.output(self.features(images))


def _stage(channels_in: int, channels: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(channels), nn.ReLU()]


class DigitsExtractor:
    """The bundled classifier as a :class:`~runtime.features.FeatureExtractor`."""

    name = "digits-classifier"
    dims = {"digits": NUM_FEATURES, "digits_logits": 10}  # noqa: RUF012
    is_published = False

    def __init__(self, device: torch.device, folder: Path = BUNDLED) -> None:
        weights = folder / "model.safetensors"
        if not weights.is_file():
            raise UserError(
                f"{weights} is missing: python -m assets.train_digits_classifier makes it"
            )
        self.device = device
        self.weights_sha256 = hashlib.sha256(weights.read_bytes()).hexdigest()
        self.network = DigitsClassifier()
        self.network.load_state_dict(safetensors.torch.load_file(weights))
        self.network.to(device).eval().requires_grad_(False)

    @torch.inference_mode()
    def features(
        self, images: UInt8[Tensor, "batch height width 3"]
    ) -> dict[str, Float[Tensor, "batch _"]]:
        if images.shape[1:3] != (IMAGE_SIZE, IMAGE_SIZE):
            height, width = images.shape[1:3]
            raise UserError(
                f"the digits classifier sees images of {IMAGE_SIZE} x {IMAGE_SIZE} pixels, "
                f"not {height} x {width}"
            )
        with torch.autocast(self.device.type, enabled=False):
            features = self.network.features(from_uint8(images.to(self.device)))
            return {"digits": features, "digits_logits": self.network.output(features)}

    def class_accuracy(
        self, images: UInt8[Tensor, "batch height width 3"], labels: Int[Tensor, " batch"]
    ) -> float:
        """Share of the images that the classifier puts into the class of their label."""
        found = self.features(images)["digits_logits"].argmax(dim=1).cpu()
        return (found == labels.cpu()).double().mean().item()


def held_out_accuracy(folder: Path = BUNDLED) -> float:
    """Of the bundled classifier on the digits that it has not seen, as its training measured it."""
    return json.loads((folder / "classifier.json").read_text())["held_out_accuracy"]
