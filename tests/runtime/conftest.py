"""Small latent data sets for the tests of everything that reads one."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tiny_latents import write_latents

MakeLatents = Callable[..., Path]


@pytest.fixture
def make_latents(tmp_path: Path) -> MakeLatents:
    """Writes a data set of known values; ``**changes`` are to its passport."""

    def make(name: str = "latents", log_variance: float = -2.0, **changes: object) -> Path:
        return write_latents(tmp_path / name, log_variance, **changes)

    return make
