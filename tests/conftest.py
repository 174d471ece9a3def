"""What every test shares: the folder of golden numbers, and one thread per process."""

from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
import torch

VENDORED_GOLDEN = Path(__file__).parent / "parity" / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--golden-dir",
        type=Path,
        default=VENDORED_GOLDEN,
        help="folder of golden numbers for tests/parity",
    )


@pytest.fixture(autouse=True)
def _same_numbers_every_time() -> None:
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes() -> Iterator[None]:
    """For tests of many thousand tiny calls, where checking shapes takes most of the time."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
