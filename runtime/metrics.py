"""The metrics as results name them: which features each needs, and how its numbers are labelled.

A score always carries the number of generated images in its name (``FID-50000``): the number of
images moves a FID more than most ideas do.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from runtime.features import FeatureSet, Wanted
from runtime.frechet import frechet_terms
from runtime.inception_score import consecutive_chunks, inception_score
from runtime.kernel_distance import kernel_distance
from runtime.precision_recall import precision_recall


@dataclass(frozen=True)
class Score:
    quantity: str
    value: float
    num_generated: int
    num_reference: int | None  # None: no reference takes part, or its file does not say
    note: str = ""

    @property
    def name(self) -> str:
        return f"{self.quantity}-{self.num_generated}"


@runtime_checkable
class Metric(Protocol):
    """Raises ValueError where the sets cannot be scored (too few images, say)."""

    of_sample: Wanted
    of_reference: Wanted

    def __call__(self, sample: FeatureSet, reference: FeatureSet) -> list[Score]: ...


class FrechetDistance:
    """Frechet distance of one tap: FID, sFID, or that of the digits classifier."""

    def __init__(self, quantity: str, tap: str) -> None:
        self.quantity = quantity
        self.tap = tap
        self.of_sample = self.of_reference = Wanted(gaussians=frozenset({tap}))

    def __call__(self, sample: FeatureSet, reference: FeatureSet) -> list[Score]:
        ours, theirs = sample.gaussians[self.tap], reference.gaussians[self.tap]
        assert ours.num_images is not None
        distance = frechet_terms(ours, theirs).distance
        return [Score(self.quantity, distance, ours.num_images, theirs.num_images)]


class InceptionScore:
    """In consecutive chunks of 5,000 images, as the ADM evaluator has it."""

    CHUNK = 5000
    of_sample = Wanted(rows=frozenset({"logits"}))
    of_reference = Wanted()

    def __call__(self, sample: FeatureSet, reference: FeatureSet) -> list[Score]:
        logits = sample.rows["logits"]
        chunks = consecutive_chunks(len(logits), self.CHUNK)
        mean, spread = inception_score(logits, chunks)
        note = (
            f"{len(chunks)} chunks of {self.CHUNK}, spread {spread:.4g}" if len(chunks) > 1 else ""
        )
        return [Score("IS", mean, len(logits), None, note)]


class PrecisionRecall:
    """Precision and recall with k = 3 neighbours."""

    NEIGHBOURS = 3
    of_sample = of_reference = Wanted(rows=frozenset({"pool"}))

    def __call__(self, sample: FeatureSet, reference: FeatureSet) -> list[Score]:
        ours, theirs = sample.rows["pool"], reference.rows["pool"]
        values = precision_recall(ours, theirs, self.NEIGHBOURS)
        return [
            Score(quantity, value, len(ours), len(theirs))
            for quantity, value in zip(("precision", "recall"), values, strict=True)
        ]


class KernelDistance:
    """KID over 100 subsets of 1,000 images, or of all that there are."""

    SUBSET = 1000
    of_sample = of_reference = Wanted(rows=frozenset({"pool"}))

    def __call__(self, sample: FeatureSet, reference: FeatureSet) -> list[Score]:
        ours, theirs = sample.rows["pool"].numpy(), reference.rows["pool"].numpy()
        size = min(self.SUBSET, len(ours), len(theirs))
        mean, spread = kernel_distance(ours, theirs, size)
        note = f"100 subsets of {size}, spread {spread:.4g}"
        return [Score("KID", mean, len(ours), len(theirs), note)]


class ClassAccuracy:
    """Share of the sample that the digits classifier puts into the class it was drawn for."""

    of_sample = Wanted(rows=frozenset({"digits_logits"}))
    of_reference = Wanted()

    def __call__(self, sample: FeatureSet, reference: FeatureSet) -> list[Score]:
        if sample.labels is None:
            raise ValueError("the samples come without labels")
        found = sample.rows["digits_logits"].argmax(dim=1)
        accuracy = (found == sample.labels).double().mean().item()
        return [Score("class_accuracy", accuracy, len(found), None, "by the digits classifier")]
