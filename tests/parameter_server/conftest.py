"""What tests of scripts in all roles share."""

from __future__ import annotations

import pytest
from tests.parameter_server.role_threads import RoleThreads


@pytest.fixture
def run_roles(monkeypatch: pytest.MonkeyPatch) -> RoleThreads:
    return RoleThreads(monkeypatch)
