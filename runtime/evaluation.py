"""From sample images to scores that say what they depend on."""

from pathlib import Path

from accelerate import Accelerator

from runtime.errors import UserError
from runtime.eval_config import EvalConfig
from runtime.extraction import Extraction, extract
from runtime.extractors import build_extractor
from runtime.factory import METRICS
from runtime.features import FeatureExtractor, Wanted
from runtime.metrics import Metric, Score
from runtime.references import Reference, open_reference
from runtime.results import Result
from runtime.samples import SampleSet, open_samples
from runtime.versions import versions


def evaluate(config: EvalConfig, path: Path, accelerator: Accelerator) -> Result:
    """Scores the images at ``path``. All processes have to call it, and all get the result.

    What can be wrong with the weights, the samples and the reference is found before the first
    pass over the images.
    """
    extractor = build_extractor(
        config.extractor, config.inception_weights, config.inception_sha256, accelerator
    )
    samples = open_samples(path)
    size = config.reference_image_size or _common_size(samples)
    reference = open_reference(config.reference, extractor, size)
    metrics = chosen_metrics(config.metrics, extractor)
    of_sample = _all_wanted([metric.of_sample for metric in metrics.values()])
    of_reference = _all_wanted([metric.of_reference for metric in metrics.values()])

    found = extract(extractor, samples.images, of_sample, config.batch_size, accelerator, "samples")
    reference = reference.read(extractor, of_reference, config.batch_size, accelerator)
    scores, skipped = score(metrics, found, reference)
    return Result(
        samples=str(path),
        samples_sha256=found.sha256,
        settings=samples.settings,
        reference=reference.name,
        reference_sha256=reference.sha256,
        reference_parts=reference.parts(),
        extractor=extractor.name,
        weights_sha256=extractor.weights_sha256,
        image_sizes=[f"{height} x {width}" for height, width in found.sizes],
        scores=scores,
        skipped=skipped,
        warnings=warnings_about(samples, found, reference, extractor),
        versions=versions(),
    )


def chosen_metrics(names: tuple[str, ...] | None, extractor: FeatureExtractor) -> dict[str, Metric]:
    """Those asked for, or all whose features the extractor has."""
    possible = {
        name: metric
        for name, metric in METRICS.items()
        if (metric.of_sample.taps | metric.of_reference.taps) <= extractor.dims.keys()
    }
    if names is None:
        return possible
    for name in names:
        if name not in possible:
            raise UserError(
                f"{extractor.name} cannot give {name}; it can give: {', '.join(possible)}"
            )
    return {name: possible[name] for name in names}


def score(
    metrics: dict[str, Metric], found: Extraction, reference: Reference
) -> tuple[list[Score], dict[str, str]]:
    """The scores, and why a metric is missing. A distance that cannot be trusted is an error."""
    scores: list[Score] = []
    skipped: dict[str, str] = {}
    for name, metric in metrics.items():
        lacking = metric.of_reference.not_in(reference.stored)
        if lacking:
            skipped[name] = f"the reference gives no {' and no '.join(lacking)}"
            continue
        try:
            scores += metric(found.features, reference.stored)
        except ValueError as error:
            skipped[name] = str(error)
        except ArithmeticError as error:
            raise UserError(f"{name}: {error}") from error
    return scores, skipped


def warnings_about(
    samples: SampleSet, found: Extraction, reference: Reference, extractor: FeatureExtractor
) -> list[str]:
    """What keeps the scores from being compared with other people's."""
    warnings = []
    lossy = [("samples", samples.images)] + [("reference", i) for i in [reference.images] if i]
    for kind, images in lossy:
        if images.num_lossy:
            warnings.append(
                f"{images.num_lossy:,} {kind} images are lossy (JPEG or WebP): distances move"
            )
    warnings += reference.doubts
    if len(found.sizes) > 1:
        warnings.append(f"the samples have {len(found.sizes)} different sizes")
    if not extractor.is_published:
        warnings.append(
            f"scores by {extractor.name} with these weights compare only with one another"
        )
    if "pool" in extractor.dims:
        warnings += _too_few("generated", found.num_images)
        warnings += _too_few("reference", reference.num_images)
    return warnings


def _too_few(kind: str, num_images: int | None) -> list[str]:
    if num_images is None:
        return []
    if num_images < 2048:
        return [f"{num_images:,} {kind} images leave the covariance of 2048 features singular"]
    if num_images < 50_000 and kind == "generated":
        return [f"published FIDs are of 50,000 generated images; {num_images:,} give a higher one"]
    return []


def _common_size(samples: SampleSet) -> int | None:
    """The side of the samples' first image, if it is square."""
    height, width = samples.images.read(0).shape[:2]
    return height if height == width else None


def _all_wanted(parts: list[Wanted]) -> Wanted:
    return Wanted(
        frozenset().union(*(part.gaussians for part in parts)),
        frozenset().union(*(part.rows for part in parts)),
    )
