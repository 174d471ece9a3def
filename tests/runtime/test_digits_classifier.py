"""The judge of the demo knows digits, and says so truthfully."""

import numpy as np
import pytest
import torch
from torch import Tensor

from runtime.digits_classifier import DigitsExtractor, held_out_accuracy
from runtime.errors import UserError
from runtime.features import FeatureExtractor
from runtime.images import center_crop
from runtime.sources import open_source

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def classifier() -> DigitsExtractor:
    return DigitsExtractor(CPU)


@pytest.fixture(scope="module")
def held_out() -> tuple[Tensor, Tensor]:
    source = open_source("digits/held_out")
    images = np.stack([np.asarray(center_crop(source.read(i), 32)) for i in range(len(source))])
    return torch.from_numpy(images), torch.from_numpy(source.labels)


def test_held_out_accuracy_is_the_stated_one(
    classifier: DigitsExtractor, held_out: tuple[Tensor, Tensor]
) -> None:
    accuracy = classifier.class_accuracy(*held_out)
    assert accuracy >= 0.98
    assert accuracy == pytest.approx(held_out_accuracy(), abs=0.005)


def test_chance_is_chance(classifier: DigitsExtractor, held_out: tuple[Tensor, Tensor]) -> None:
    images, labels = held_out
    assert classifier.class_accuracy(images, labels.roll(1)) < 0.3
    noise = torch.randint(0, 256, images.shape, dtype=torch.uint8)
    assert classifier.class_accuracy(noise, labels) < 0.3


def test_it_is_a_feature_extractor(
    classifier: DigitsExtractor, held_out: tuple[Tensor, Tensor]
) -> None:
    assert isinstance(classifier, FeatureExtractor)
    features = classifier.features(held_out[0][:5])
    assert {tap: rows.shape[1] for tap, rows in features.items()} == classifier.dims


def test_images_of_another_size_are_refused(classifier: DigitsExtractor) -> None:
    with pytest.raises(UserError, match="not 64 x 32"):
        classifier.features(torch.zeros(1, 64, 32, 3, dtype=torch.uint8))
