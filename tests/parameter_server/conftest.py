"""What tests of scripts in all roles share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.parameter_server.linking import Serving, echo
from tests.parameter_server.role_threads import RoleThreads

from lockstep.strategies import fitting


@pytest.fixture(autouse=True)
def outlives_no_test() -> Iterator[None]:
    """A strategy that a test has made in this thread forbids nothing to the next one."""
    yield
    fitting._only.set(None)


@pytest.fixture
def serving() -> Iterator[Serving]:
    """The listening end of a link, which answers with what it was sent."""
    made = Serving(echo)
    yield made
    made.close()


@pytest.fixture
def run_roles(monkeypatch: pytest.MonkeyPatch) -> RoleThreads:
    return RoleThreads(monkeypatch)
