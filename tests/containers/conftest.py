"""A fake engine on the ``PATH``."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.testing.container_engine import FakeContainerEngine


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContainerEngine:
    made = FakeContainerEngine(tmp_path / "engine")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    monkeypatch.delenv("LOCKSTEP_CONTAINER_ENGINE", raising=False)
    return made
