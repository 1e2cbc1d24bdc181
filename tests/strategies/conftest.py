"""What the tests of strategies share."""

import os
from pathlib import Path

import pytest

REFERENCES_VARIABLE = "LOCKSTEP_TEST_REFERENCES"


@pytest.fixture(scope="session")
def references(tmp_path_factory):
    """A folder of this test run, the same in all of its processes: what one device gave is kept there."""
    given = os.environ.get(REFERENCES_VARIABLE)
    if given:
        return Path(given)
    own = tmp_path_factory.getbasetemp()
    return (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "references"
