"""What the tests of the examples share."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where compiled programs are kept, from one script to the next."""
    return tmp_path_factory.mktemp("xla")
