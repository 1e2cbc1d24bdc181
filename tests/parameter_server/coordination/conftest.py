"""A dispatcher for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.parameter_server.coordination.workers import Cluster


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    yield made
    made.close()
