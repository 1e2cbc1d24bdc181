"""A fake engine on the ``PATH``, which has one image."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.testing.container_engine import FakeContainerEngine

IMAGE = "reg.example.com/trainer:1"


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContainerEngine:
    made = FakeContainerEngine(tmp_path / "engine")
    made.configure(registry={IMAGE: "sha256:1"})
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    monkeypatch.delenv("LOCKSTEP_CONTAINER_ENGINE", raising=False)
    return made
