"""Parity tests read whatever lies in the golden folder: files, cases and constants alike."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # lets the tests import `golden`

from golden import Golden


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(request.config.getoption("--golden-dir"))
