"""One real service for all tests of this folder."""

from collections.abc import Iterator

import pytest

from lockstep.testing.machine import Machine


@pytest.fixture(scope="package")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    made.run("up")
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []
