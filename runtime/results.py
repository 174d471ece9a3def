"""The result of an evaluation: on one line, as a table and as JSON, always with its conditions."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from runtime.metrics import Score


@dataclass(frozen=True)
class Result:
    samples: str
    samples_sha256: str  # of the set of images, in whatever form they are stored
    settings: dict[str, Any]  # what made the samples, as sample.py wrote it down
    reference: str
    reference_sha256: str | None
    reference_parts: list[str]
    extractor: str
    weights_sha256: str
    image_sizes: list[str]
    scores: list[Score]
    skipped: dict[str, str]  # metric: why it is missing
    warnings: list[str]
    versions: dict[str, str]

    def to_json(self) -> dict[str, Any]:
        scores = [{"name": score.name, **asdict(score)} for score in self.scores]
        return {**asdict(self), "scores": scores}

    def lines(self) -> list[str]:
        """A line per score, and what all of them depend on."""
        width = max((len(score.name) for score in self.scores), default=0)
        return [
            *(f"{score.name:{width}}  {_value(score)}" for score in self.scores),
            *(f"{name} skipped: {reason}" for name, reason in self.skipped.items()),
            *(f"reference, {part}" for part in self.reference_parts),
            f"conditions: {self.conditions()}",
            *(f"warning: {warning}" for warning in self.warnings),
        ]

    def conditions(self) -> str:
        """All that the numbers depend on, on one line."""
        s = self.settings
        sampler, guidance = s.get("sampler", {}), s.get("guidance", {})
        known = {
            "model": s.get("model"),
            "attention": s.get("attention"),
            "training step": s.get("step"),
            "weights": s.get("weights"),
            "sampler": _listed(sampler),
            "guidance": _listed(guidance),
            "labels": s.get("labels"),
            "rounding": s.get("rounding"),
            "precision": s.get("precision"),
            "seed": s.get("seed"),
            "image size": ", ".join(self.image_sizes),
            "network": f"{self.extractor} {self.weights_sha256[:8]}",
            "reference": f"{self.reference} {(self.reference_sha256 or '')[:8]}".strip(),
        }
        return "; ".join(f"{key} {value}" for key, value in known.items() if value is not None)


def _value(score: Score) -> str:
    count = "" if score.num_reference is None else f"  against {score.num_reference:,} images"
    note = f"  ({score.note})" if score.note else ""
    return f"{score.value:12.6g}{count}{note}"


def _listed(section: dict[str, Any]) -> str | None:
    return ", ".join(f"{key}={value}" for key, value in section.items()) or None


def default_path(samples: Path, extractor: str) -> Path:
    """``results/NAME-EXTRACTOR.json`` in the run folder, or beside samples that are in none."""
    samples = samples.absolute()
    name = samples.parent.name if samples.name == "samples.npz" else samples.stem
    home = samples.parent if samples.name != "samples.npz" else samples.parent.parent
    home = home.parent if home.name == "samples" else home
    return home / "results" / f"{name}-{extractor}.json"
