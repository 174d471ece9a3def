"""Images of a Hugging Face data set: on the hub, saved by ``save_to_disk``, or a folder of files.

Rows keep their order. Labels are those of the column's own class list where it has one; whole
numbers are themselves; other texts are numbered in alphabetical order.
"""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int
from PIL import Image

from runtime.errors import UserError
from runtime.image_source import FORMATS, ImageSource

SAVED = ("dataset_info.json", "dataset_dict.json")  # what save_to_disk leaves, one or several parts
MOST_CLASSES = 100_000  # beyond, whole numbers in a column are hardly labels


@dataclass(frozen=True)
class HubConfig:
    """Which part and columns of a Hugging Face data set; null where there is only one choice."""

    split: str | None = field(default=None, metadata={"help": "for example train"})
    subset: str | None = field(default=None, metadata={"help": "configuration of the data set"})
    revision: str | None = field(default=None, metadata={"help": "commit or tag on the hub"})
    image: str | None = field(default=None, metadata={"help": "column of the images"})
    label: str | None = field(default=None, metadata={"help": "column of the labels"})


class HubImages(ImageSource):
    """The rows of one split. Raises UserError that names the choices where it has several."""

    def __init__(self, name: str, config: HubConfig) -> None:
        rows = _split(name, config, _load(name, config))
        kinds = {column: type(kind).__name__ for column, kind in rows.features.items()}
        self._image = _column(name, "image", config.image, kinds, "Image")
        label = _column(name, "label", config.label, kinds, "ClassLabel")
        self.class_names, self.labels = _classes(name, label, rows)
        self.names = [f"row {row}" for row in range(len(rows))]
        # Decoded here, by the rules for all images.
        undecoded = _datasets().Image(decode=False)
        self._rows = rows.select_columns([self._image]).cast_column(self._image, undecoded)

    def _open(self, index: int) -> Image.Image:
        stored = self._rows[index][self._image]
        if stored is None:
            raise ValueError("the row has no image")
        content = stored["bytes"]
        content = Path(stored["path"]).read_bytes() if content is None else content
        if not content:
            raise ValueError("the file is empty")
        return Image.open(io.BytesIO(content), formats=FORMATS)


def _datasets() -> Any:
    try:
        import datasets  # takes a second, which no other source should wait for
    except ImportError as error:
        raise UserError("images=hf:... needs the package datasets: pip install datasets") from error
    return datasets


def _load(name: str, config: HubConfig) -> Any:
    """The data set, or its splits by name."""
    datasets = _datasets()
    try:
        if any((Path(name) / file).exists() for file in SAVED):
            return datasets.load_from_disk(name)
        return datasets.load_dataset(name, config.subset, revision=config.revision)
    except Exception as error:  # the hub's client raises errors of several libraries
        text = " ".join(str(error).split())
        raise UserError(
            f"cannot load the data set {name!r} ({type(error).__name__}: {text}); name a folder, "
            f"or, where there is a network, run `hf download --repo-type dataset {name}`"
        ) from error


def _split(name: str, config: HubConfig, loaded: Any) -> Any:
    if not isinstance(loaded, dict):  # saved without splits
        if config.split is not None:
            raise UserError(f"hf.split = {config.split}, but {name!r} was saved without splits")
        return loaded
    if config.split is None and len(loaded) == 1:
        return next(iter(loaded.values()))
    if config.split not in loaded:
        raise UserError(
            f"hf.split = {config.split or 'null'}, but {name!r} has: {', '.join(loaded)}"
        )
    return loaded[config.split]


def _column(name: str, key: str, chosen: str | None, kinds: dict[str, str], kind: str) -> str:
    """The column of that name, or the only one of that kind."""
    listed = ", ".join(f"{column} ({kind})" for column, kind in kinds.items())
    if chosen is None:
        fitting = [column for column in kinds if kinds[column] == kind]
        if len(fitting) == 1:
            return fitting[0]
        found = "no column" if not fitting else f"{len(fitting)} columns"
        raise UserError(
            f"{name!r} has {found} of type {kind}: give hf.{key}=COLUMN, one of: {listed}"
        )
    if chosen not in kinds or (key == "image" and kinds[chosen] != kind):
        raise UserError(f"hf.{key} = {chosen} is no {key} column of {name!r}; it has: {listed}")
    return chosen


def _classes(
    name: str, column: str, rows: Any
) -> tuple[tuple[str, ...], Int[np.ndarray, " images"]]:
    values = rows[column][:]
    if any(not isinstance(value, int | str) for value in values):
        raise UserError(f"column {column} of {name!r} holds other values than numbers and texts")
    if not values:
        raise UserError(f"{name!r} has no rows")
    if isinstance(values[0], str):
        classes = tuple(sorted(set(values)))
        numbers = {text: number for number, text in enumerate(classes)}
        return classes, np.array([numbers[text] for text in values], dtype=np.int64)
    labels = np.array(values, dtype=np.int64)
    known = getattr(rows.features[column], "names", None)
    num_classes = len(known) if known else int(labels.max()) + 1
    if labels.min() < 0 or labels.max() >= num_classes or num_classes > MOST_CLASSES:
        raise UserError(
            f"column {column} of {name!r} holds {labels.min()} to {labels.max()}, "
            f"which are no labels{f' of {num_classes} classes' if known else ''}"
        )
    return tuple(known or map(str, range(num_classes))), labels
