"""What generated images are compared with: stored statistics, real images, or both.

A file of the ADM evaluator holds mean and covariance over its whole data set beside some of the
images (``arr_0``). The distances use the stored statistics; precision, recall and KID use the
images. Files of ``tools.statistics`` may hold features of every image instead; files of
pytorch-fid have ``mu`` and ``sigma`` alone.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from accelerate import Accelerator

from runtime.atomic import sha256_of
from runtime.errors import UserError
from runtime.extraction import extract
from runtime.features import FeatureExtractor, FeatureSet, Wanted
from runtime.image_sets import ImageSet, NpzImages, keys_of, open_images
from runtime.statistics_file import STATISTICS, read_statistics

OTHER_RESIZE = (
    "the reference has no spatial statistics and names no network: if pytorch-fid made it, its "
    "images were resized by another rule, which moves FID by up to 5 %"
)


@dataclass(frozen=True)
class Reference:
    """``stored`` is what is known of the features; ``images``, if there are any, give the rest."""

    name: str
    stored: FeatureSet
    statistics_from: str
    images: ImageSet | None
    rows_from: str
    sha256: str | None  # of the file; None: the images' own, known when they have been read
    doubts: tuple[str, ...] = ()  # what may make it another kind of reference than it seems

    def read(
        self, extractor: FeatureExtractor, wanted: Wanted, batch_size: int, accelerator: Accelerator
    ) -> "Reference":
        """With everything wanted in ``stored``, as far as the images can give it.

        Where a file has statistics, its images give no others: they are a part of the set. All
        processes have to call it.
        """
        missing = Wanted(
            frozenset() if self.stored.gaussians else wanted.gaussians,
            wanted.rows.difference(self.stored.rows),
        )
        if self.images is None or not (missing.gaussians or missing.rows):
            return self
        found = extract(extractor, self.images, missing, batch_size, accelerator, "reference")
        features = FeatureSet(
            self.stored.gaussians | found.features.gaussians,
            self.stored.rows | found.features.rows,
        )
        return replace(self, stored=features, sha256=self.sha256 or found.sha256)

    @property
    def num_images(self) -> int | None:
        """Of the statistics, else of the rows; None: the file does not say."""
        for gaussian in self.stored.gaussians.values():
            return gaussian.num_images
        return next((len(rows) for rows in self.stored.rows.values()), None)

    def parts(self) -> list[str]:
        """Which part of the reference is used for what."""
        count = (
            "number of images not stated"
            if self.num_images is None
            else f"{self.num_images:,} images"
        )
        lines = [f"distances: {self.statistics_from} ({count})"] if self.stored.gaussians else []
        for tap, rows in self.stored.rows.items():
            lines.append(f"per-image {tap} features: {self.rows_from} ({len(rows):,} images)")
        return lines


def open_reference(name: str, extractor: FeatureExtractor, image_size: int | None) -> Reference:
    """The reference, checked before any image is scored; ``image_size`` crops a folder's images."""
    if not name.endswith(".npz"):
        crops = open_images(name, image_size)
        rule = f"center crop to {image_size} x {image_size}" if image_size else "in their own sizes"
        origin = f"images of {name}, {rule}"
        return Reference(name, FeatureSet(), origin, crops, origin, sha256=None)
    path = Path(name)
    keys = keys_of(path)
    if not {"mu", "sigma", "arr_0"} & set(keys):
        raise UserError(f"{path} has neither mu and sigma nor arr_0; it has: {', '.join(keys)}")
    stored, about = read_statistics(path, keys, extractor)
    gaussians = stored.gaussians
    images: ImageSet | None = NpzImages(path) if "arr_0" in keys else None
    stored_names = ", ".join(name for tap in gaussians for name in STATISTICS[tap])
    made_from = f", {about['images']}" if about else ""
    return Reference(
        name,
        stored,
        f"stored {stored_names}{made_from}" if gaussians else "arr_0",
        images,
        "arr_0" if images else f"stored rows{made_from}",
        sha256_of(path),
        () if about or set(gaussians) != {"pool"} else (OTHER_RESIZE,),
    )
