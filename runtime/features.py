"""What a feature network is, and what one pass of it over a set of images leaves behind."""

from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from jaxtyping import Float, Int, UInt8
from torch import Tensor

from runtime.moments import Gaussian


@runtime_checkable
class FeatureExtractor(Protocol):
    """A network from 8-bit images to named features ("taps").

    The names of taps belong to one kind of network, and a metric asks for taps by name: no score
    of another network can pass for a FID.
    """

    name: str  # as results name it
    weights_sha256: str
    is_published: bool  # whether other people's numbers were made with these weights
    dims: dict[str, int]  # of each tap

    def features(
        self, images: UInt8[Tensor, "batch height width 3"]
    ) -> dict[str, Float[Tensor, "batch _"]]:
        """Every tap of the images, float32, on the network's device."""


@dataclass(frozen=True)
class FeatureSet:
    """All that metrics know of a set of images.

    A published reference file has Gaussians of the whole data set and rows of a few images, so the
    two may count different images.
    """

    gaussians: dict[str, Gaussian] = field(default_factory=dict)  # by tap
    rows: dict[str, Float[Tensor, "images _"]] = field(default_factory=dict)  # by tap; per image
    labels: Int[Tensor, " images"] | None = None


@dataclass(frozen=True)
class Wanted:
    """Taps that somebody needs: their Gaussian, or one row per image."""

    gaussians: frozenset[str] = field(default_factory=frozenset)
    rows: frozenset[str] = field(default_factory=frozenset)

    @property
    def taps(self) -> frozenset[str]:
        return self.gaussians | self.rows

    def not_in(self, features: FeatureSet) -> list[str]:
        """What is missing in ``features``, in words."""
        gaussians = sorted(self.gaussians - features.gaussians.keys())
        rows = sorted(self.rows - features.rows.keys())
        return [f"statistics of {tap}" for tap in gaussians] + [f"images for {tap}" for tap in rows]
