"""What engines on Ray do when their driver is another one; a stand-in of the driver notes what it is asked."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from lockstep.clusters.ray import base
from lockstep.clusters.ray.attached import AttachedRayCluster
from lockstep.home import Home


class FakeDriver:
    """A driver that does as it is asked, until it dies."""

    made: list[FakeDriver]

    def __init__(self, **_: object) -> None:
        self.is_alive = True
        self.calls: list[str] = []
        self.made.append(self)

    def call(self, name: str, **_: object) -> dict[str, Any]:
        self.calls.append(name)
        return {}

    def describe_exit(self) -> str:
        return "ended with exit code 1"

    def end(self) -> None:
        self.is_alive = False


def test_a_ray_that_came_back_at_its_address_is_told_of_the_fence_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(FakeDriver, "made", [], raising=False)
    monkeypatch.setattr(base, "DriverProcess", FakeDriver)
    cluster = AttachedRayCluster("127.0.0.1:1", home=Home(path=tmp_path))
    cluster.start()
    for _ in range(2):
        cluster.fence(3, owner="somebody")
    (first,) = FakeDriver.made
    assert first.calls == ["connect", "fence"]
    with caplog.at_level(logging.WARNING):
        first.is_alive = False  # its node of Ray is lost
        cluster.start()
    cluster.fence(3, owner="somebody")
    _, second = FakeDriver.made
    assert second.calls == ["connect", "fence"]
    assert caplog.messages == ["the connection to the Ray at 127.0.0.1:1 is lost: its driver ended with exit code 1"]
