"""A place where other users than root may run Python, and a version whose servers do."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from lockstep.service.prediction.deployments import Deployments
from lockstep.service.security.users import UserPool
from lockstep.service.store import JobRecord, ModelStore, VersionRecord
from lockstep.testing.bench import Bench, step_pauses_s

WAIT_S = 60.0

# Each process of pytest-xdist has ids of its own: all processes of an id are killed when its server ends.
_NUMBER = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
POOL = UserPool(first=59500 + 101 * _NUMBER, last=59600 + 101 * _NUMBER)

IS_ROOT = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root on Linux may start programs as other users"
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """A folder that others may pass through, and a Python in it that they may run."""

    folder: Path
    python: Path


@dataclass(frozen=True, kw_only=True)
class Site:
    """A version in a service whose programs have users of their own."""

    bench: Bench
    models: ModelStore
    deployments: Deployments

    def create(self, model: Path, package: str, *, prediction_class: str | None = None) -> None:
        self.models.create_model(project="mine", name="m", description="", labels={})
        self.models.create_version(
            project="mine",
            model="m",
            name="v1",
            description="",
            labels={},
            deployment_uri=str(model),
            machine_type="n1-standard-4",
            package_uris=[package],
            prediction_class=prediction_class,
        )

    @property
    def version(self) -> VersionRecord:
        return self.models.get_version(project="mine", model="m", name="v1")

    @property
    def server(self) -> JobRecord:
        (server,) = self.bench.store.servers()
        return server

    def delete(self) -> None:
        self.models.begin_delete_version(project="mine", model="m", name="v1")
        self.step_until(lambda: self.models.list_versions() == [])

    def step_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        pauses_s = step_pauses_s()
        while not condition():
            assert time.monotonic() < deadline, (self.version, self.bench.store.servers())
            self.bench.step()
            self.deployments.step()
            time.sleep(next(pauses_s))


def processes_of(users: Container[int]) -> list[psutil.Process]:
    """Returns the processes of some users."""
    found = psutil.process_iter(["uids", "status"])
    theirs = [process for process in found if any(user in users for user in process.info["uids"] or ())]
    return [process for process in theirs if process.info["status"] != psutil.STATUS_ZOMBIE]
