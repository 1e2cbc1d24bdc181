"""What dies or stops under callers of a deployed model: its server, and the head of the engine. All are real."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import httpx
import keras
import psutil
import pytest

import lockstep  # selects Keras's backend, so it goes before Keras
from lockstep.client.addresses import find_address
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.testing.machine import TIMEOUT_S, Machine

assert lockstep is not None

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(400),
    # Keras's variables implement NumPy's __array__ by its older form; saving a model meets it.
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword:DeprecationWarning"),
]

KILLED_S: Final = 5.0
"""So soon after a server's death another one answers, on the same node."""
STOPPED_S: Final = 10.0
"""So soon after a server stopped it is replaced."""
HEAD_S: Final = 20.0
"""So soon after the death of the engine's head all is well again, as for jobs."""
NUM_CALLERS: Final = 8


class Callers:
    """Threads that request predictions in a loop."""

    def __init__(self, machine: Machine) -> None:
        self._address = find_address(machine.home, env={})
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.num_answered = 0
        self.lost: list[tuple[int, str]] = []
        self._threads = [threading.Thread(target=self._call) for _ in range(NUM_CALLERS)]
        for thread in self._threads:
            thread.start()

    def _call(self) -> None:
        headers = {"authorization": f"Bearer {self._address.token}"}
        with httpx.Client(base_url=self._address.url, headers=headers, timeout=TIMEOUT_S) as http:
            while not self._stop.is_set():
                answer = http.post("/v1/projects/local/models/sums:predict", json={"instances": [[1.0, 2.0]]})
                with self._lock:
                    if answer.status_code != 200:
                        self.lost.append((answer.status_code, answer.text))
                        continue
                    assert answer.json() == {"predictions": [[3.0]]}
                    self.num_answered += 1

    def until(self, condition: Callable[[], bool], *, within_s: float = TIMEOUT_S) -> float:
        """Waits for a condition; returns how long that took, in seconds."""
        start = time.monotonic()
        while not condition():
            assert time.monotonic() - start < within_s
            time.sleep(0.01)
        return time.monotonic() - start

    def until_answered(self, number: int = 50) -> float:
        """Waits until so many further requests are answered; returns how long that took, in seconds."""
        wanted = self.num_answered + number
        return self.until(lambda: self.num_answered >= wanted)

    def stop(self) -> None:
        """Stops the threads."""
        self._stop.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)
            assert not thread.is_alive()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made.run("up")
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.save(tmp_path / "model.keras")
    made.run("deploy", "sums", "--model-url", str(tmp_path / "model.keras"))
    yield made
    made.run("down", "--cancel")
    assert made.processes() == []


@pytest.fixture
def callers(machine: Machine) -> Iterator[Callers]:
    made = Callers(machine)
    made.until_answered()
    yield made
    made.stop()


def _server_pid(machine: Machine) -> int:
    (server,) = (process for process in machine.processes() if "lockstep.serving" in process.cmdline())
    return server.pid


def _is_up(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@pytest.mark.parametrize(
    ("number", "within_s"), [(signal.SIGKILL, KILLED_S), (signal.SIGSTOP, STOPPED_S)], ids=["killed", "stopped"]
)
def test_a_server_is_replaced_and_loses_the_requests_in_its_hands_alone(
    machine: Machine, callers: Callers, number: signal.Signals, within_s: float
) -> None:
    took_s = []
    for _ in range(3):
        pid = _server_pid(machine)
        callers.lost.clear()
        os.kill(pid, number)
        gone_s = callers.until(lambda pid=pid: not _is_up(pid))
        took_s.append(gone_s + callers.until_answered(1))
        callers.until_answered()
        # Each caller has one request in the server's hands.
        assert len(callers.lost) <= NUM_CALLERS, callers.lost
        assert {status for status, _ in callers.lost} <= {503}, callers.lost
    print("another one answered after", ", ".join(f"{seconds:.1f} s" for seconds in took_s))
    assert max(took_s) < within_s, took_s
    assert "sums/v1 READY" in machine.run("status")


def test_the_engines_head_dies_and_the_model_answers_again(machine: Machine, callers: Callers) -> None:
    took_s = []
    for _ in range(3):
        record = EmbeddedHead(machine.home).find()
        assert record is not None
        server = _server_pid(machine)
        callers.lost.clear()
        os.kill(record.pid, signal.SIGKILL)
        gone_s = callers.until(lambda server=server: not _is_up(server))
        took_s.append(gone_s + callers.until_answered(1))
        callers.until_answered()
        assert {status for status, _ in callers.lost} <= {429, 503}, callers.lost
        assert _server_pid(machine) != server
    print("it answered again after", ", ".join(f"{seconds:.1f} s" for seconds in took_s))
    assert max(took_s) < HEAD_S, took_s
