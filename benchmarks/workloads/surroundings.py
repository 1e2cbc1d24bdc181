"""A service of the benchmark's own, in a temporary folder, and what is asked of the machine that it runs on."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import psutil
from harness.tables import console

from lockstep.client import Client, ServiceAddress
from lockstep.home import Home
from lockstep.service.lifecycle import down, up
from lockstep.service.settings import Settings
from lockstep.submission.packing import stage_folder

POLL_S: Final = 0.01
TIMEOUT_S: Final = 60.0
OVER: Final = ("SUCCEEDED", "FAILED", "CANCELLED")


@final
@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """A running service.

    Attributes:
        home: where its state lies.
        address: where it answers.
        pid: its process.
        folder: an empty one, for the workload's own files.
    """

    home: Home
    address: ServiceAddress
    pid: int
    folder: Path

    def client(self) -> Client:
        return Client(self.address)

    def stage(self, name: str, program: str) -> str:
        """Puts a program of one module into the bucket; returns the package's URL."""
        folder = self.folder / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(program)
        with self.client() as client:
            return stage_folder(folder, staging=client.service()["bucket"])


@contextmanager
def running_service(*, prepare: Callable[[Settings], object] | None = None) -> Iterator[Surroundings]:
    """Starts a service with default settings, and ends it with all that it runs.

    Args:
        prepare: is called before it starts, with its settings.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-bench-") as folder:
        home = Home(path=Path(folder) / "home")
        settings = Settings(home=home, bucket=str(home.bucket))
        if prepare is not None:
            home.create()
            prepare(settings)
        own = Path(folder) / "workload"
        own.mkdir()
        try:
            started = time.perf_counter()
            running = up(settings)
            console.print(f"lockstep up: {time.perf_counter() - started:.2f} s")
            yield Surroundings(home=home, address=running.address, pid=running.pid, folder=own)
        finally:
            started = time.perf_counter()
            down(settings, cancel=True, progress=lambda _text: None)
            console.print(f"lockstep down: {time.perf_counter() - started:.2f} s\n")


def wait(condition: Callable[[], bool], *, timeout_s: float = TIMEOUT_S, poll_s: float = POLL_S) -> None:
    """Returns when a condition holds; fails after a time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing happened for {timeout_s:.0f} s")
        time.sleep(poll_s)


def wait_for_end(client: Client, job: str, *, timeout_s: float = TIMEOUT_S) -> dict[str, Any]:
    """Returns a job once it is over."""
    wait(lambda: client.job(job)["state"] in OVER, timeout_s=timeout_s, poll_s=0.1)
    return client.job(job)


def runners_of(job: dict[str, Any]) -> list[int]:
    """Returns the runners of a running job's replicas: each is its program's parent."""
    found = []
    for replica in job["lockstep"]["replicas"]:
        if replica["pid"] is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(replica["pid"]).ppid())
    return found
