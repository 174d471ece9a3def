"""The feature networks that a config can name."""

from accelerate import Accelerator

from runtime.digits_classifier import DigitsExtractor
from runtime.features import FeatureExtractor
from runtime.inception import InceptionExtractor, find_weights
from runtime.launch import on_main

EXTRACTORS = ("inception", "digits")


def build_extractor(
    name: str, inception_weights: str | None, inception_sha256: str, accelerator: Accelerator
) -> FeatureExtractor:
    """All processes have to call it: one of them downloads weights that are missing."""
    if name == "digits":
        return DigitsExtractor(accelerator.device)
    on_main(accelerator, lambda: find_weights(inception_weights))
    weights = find_weights(inception_weights)
    return InceptionExtractor(weights, accelerator.device, inception_sha256)
