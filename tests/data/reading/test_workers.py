"""Batches that processes make."""

import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
import psutil
import pytest

from lockstep.data import Batches
from lockstep.data.reading import workers
from lockstep.errors import BackendError, CorruptDataError

WAIT_S = 60

# Other processes cannot import tests by their names.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Pair(NamedTuple):
    first: Any
    second: Any


def make_values(records: list[int]) -> Any:
    numbers = np.asarray(records)
    return {
        "pair": Pair(first=np.repeat(numbers[:, np.newaxis], 1000, 1), second=numbers.astype(np.float32)),
        "rest": (numbers.astype(object), np.empty((0, 3)), "text", None, os.getpid()),
    }


def make(count: int = 10, **options: Any) -> Batches:
    arguments: dict[str, Any] = {"batch_size": 3, "transform": make_values, "seed": 1, "num_processes": 2, **options}
    return Batches(range(count), **arguments)


def wait_until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_they_make_what_threads_make() -> None:
    batches = make()
    by_threads = make(num_processes=0)
    for _ in range(2):
        found, wanted = list(batches), list(by_threads)
        assert len(found) == 4
        for batch, other in zip(found, wanted, strict=True):
            assert isinstance(batch["pair"], Pair)
            np.testing.assert_array_equal(batch["pair"].first, other["pair"].first)
            np.testing.assert_array_equal(batch["pair"].second, other["pair"].second)
            np.testing.assert_array_equal(batch["rest"][0], other["rest"][0])
            assert batch["rest"][1].shape == (0, 3)
            assert batch["rest"][2:4] == ("text", None)
            assert batch["rest"][4] != os.getpid()
            batch["pair"].first[0, 0] = -1  # it may be written to


def test_their_memory_is_given_back_and_they_end() -> None:
    others = set(psutil.Process().children(recursive=True))  # a server of other tests, say
    batches = make()
    pool = batches._workers
    assert pool is not None
    folder = Path(pool._folder)
    first = next(iter(batches))
    pids = [process.pid for process in psutil.Process().children(recursive=True) if process not in others]
    assert pids
    del batches, pool
    gc.collect()
    wait_until(lambda: not folder.exists())
    assert first["pair"].first.shape == (3, 1000)  # is there as long as it is needed
    assert int(first["pair"].first.sum()) == int(first["pair"].second.sum()) * 1000
    wait_until(lambda: all(not psutil.pid_exists(pid) or is_trackers(pid) for pid in pids))


def is_trackers(pid: int) -> bool:
    try:
        return "resource_tracker" in " ".join(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return False


def test_little_memory_is_enough(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(workers, "_MEMORY", tmp_path / "none")
    assert [batch["pair"].first.shape for batch in make(6)] == [(3, 1000)] * 2


def failing(records: list[int]) -> np.ndarray:
    if 4 in records:
        raise CorruptDataError("record 4 is damaged")
    return np.asarray(records)


def test_errors_come_as_they_are() -> None:
    batches = make(seed=None, transform=failing)
    iterator = iter(batches)
    assert next(iterator).tolist() == [0, 1, 2]
    with pytest.raises(CorruptDataError, match="record 4 is damaged"):
        next(iterator)


def dying(records: list[int]) -> np.ndarray:
    if 4 in records:
        os.kill(os.getpid(), signal.SIGKILL)
    return np.asarray(records)


def test_one_that_is_killed_is_told() -> None:
    iterator = iter(make(seed=None, transform=dying, read_ahead=1))
    assert next(iterator).tolist() == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(BackendError, match="one of the 2 processes that make batches ended"):
            next(iterator)


def pids_of(records: list[int]) -> np.ndarray:
    return np.full(len(records), os.getpid())


def test_others_start_after_one_was_killed() -> None:
    batches = make(num_processes=1, transform=pids_of)
    (pid,) = {int(batch[0]) for batch in batches}
    os.kill(pid, signal.SIGINT)  # Ctrl-C in a terminal goes to them, too
    assert {int(batch[0]) for batch in batches} == {pid}
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
    deadline = time.monotonic() + WAIT_S
    while True:  # the pool may not have noticed it yet: then it is an error, once
        try:
            pids = {int(batch[0]) for batch in batches}
            break
        except BackendError:
            assert time.monotonic() < deadline
    assert len(pids) == 1
    assert pid not in pids


class AwkwardError(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def failing_awkwardly(records: list[int]) -> np.ndarray:
    if 4 in records:
        raise AwkwardError("cannot", "travel")
    return np.asarray(records)


def test_errors_that_cannot_be_pickled_are_told_and_the_processes_go_on() -> None:
    batches = make(seed=None, transform=failing_awkwardly, num_processes=1)
    for _ in range(2):
        iterator = iter(batches)
        assert next(iterator).tolist() == [0, 1, 2]
        with pytest.raises(BackendError, match="a transform failed: AwkwardError: cannot travel"):
            next(iterator)


@pytest.mark.heavy
def test_they_end_when_the_program_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    # No guard: the main module is not run again in the processes. Its transform goes to them all the same.
    script.write_text(
        "import os, sys, time\n"
        "import numpy as np\n"
        "from lockstep.data import Batches\n"
        "print('main', flush=True)\n"
        "def transform(records):\n"
        "    return np.array([os.getpid()])\n"
        "batches = Batches(range(9), batch_size=3, transform=transform, num_processes=1)\n"
        "for batch in batches:\n"
        "    print('pid', int(batch[0]), batches._workers._folder, flush=True)\n"
        "time.sleep(300)\n"
    )
    program = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    timer = threading.Timer(WAIT_S, program.kill)
    timer.start()
    try:
        assert program.stdout is not None
        lines = [program.stdout.readline() for _ in range(4)]
        assert lines[0] == "main\n"
        found = re.fullmatch(r"pid (\d+) (\S+)\n", lines[1])
        assert found, lines
        pid, folder = int(found[1]), Path(found[2])
        assert psutil.pid_exists(pid)
        assert folder.exists()
    finally:
        program.kill()
        program.communicate()
        timer.cancel()
    wait_until(lambda: not psutil.pid_exists(pid) and not folder.exists())
