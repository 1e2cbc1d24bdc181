"""Processes that make batches, for transforms that hold Python's global interpreter lock.

The arrays of a batch are returned through a file in shared memory.
"""

from __future__ import annotations

import mmap
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

import numpy as np

from lockstep.data.reading.plan import MadeBatch, Plan
from lockstep.errors import BackendError

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of its own is created in it
_ALIGNMENT: Final = 64
_PARENT_POLL_S: Final = 1.0
_state: _WorkerState | None = None
"""The plan and the folder of this process, set in a worker process only."""


@final
class Workers:
    """A pool of processes that make the batches of a plan.

    The processes start when the first batch is requested, and end with this object or with the program. They are
    started with loky, which does not run the program's main module again in them and reports if a process is killed.
    After that, the next requested batch starts new processes.

    Args:
        plan: the plan, which is sent to each process with cloudpickle.
        num_processes: the number of processes.
    """

    def __init__(self, plan: Plan, *, num_processes: int) -> None:
        self._plan = plan
        self._folder = tempfile.mkdtemp(
            prefix="lockstep-batches-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None
        )
        self._num_processes = num_processes
        self._executors: list[Any] = []  # at most one
        weakref.finalize(self, _shut_down, self._executors, self._folder)

    def for_plan(self, plan: Plan) -> Workers:
        """Returns a pool of as many processes for another plan.

        Args:
            plan: the plan.
        """
        return Workers(plan, num_processes=self._num_processes)

    def submit(self, epoch: int, batch: int) -> Future[Any]:
        """Requests a batch. Pass the returned future to `take` or `drop`."""
        from loky.process_executor import BrokenProcessPool  # slow to import, and most programs need no processes

        try:
            return self._executor().submit(_make, epoch, batch)
        except BrokenProcessPool:  # a process ended since the last batch was taken
            self._drop_executor()
            return self._executor().submit(_make, epoch, batch)

    def _executor(self) -> Any:
        from loky import ProcessPoolExecutor

        if not self._executors:
            self._executors.append(
                ProcessPoolExecutor(self._num_processes, initializer=_initialize, initargs=(self._plan, self._folder))
            )
        return self._executors[0]

    def _drop_executor(self) -> None:
        while self._executors:
            self._executors.pop().shutdown(wait=False, kill_workers=True)

    def take(self, future: Future[Any]) -> MadeBatch:
        """Waits for a batch and returns it.

        Raises:
            BackendError: a worker process ended.
        """
        from loky.process_executor import BrokenProcessPool

        try:
            return future.result().unpack()
        except BrokenProcessPool as error:
            self._drop_executor()
            raise BackendError(
                f"one of the {self._num_processes} processes that make batches ended",
                action="see above for what it printed; one that was killed may have needed too much memory",
            ) from error

    @staticmethod
    def drop(future: Future[Any]) -> None:
        """Frees the memory of a batch that will not be taken, as soon as the batch is made."""
        future.add_done_callback(_delete_file)


@final
@dataclass(frozen=True, kw_only=True)
class _WorkerState:
    plan: Plan
    folder: str


@final
@dataclass(frozen=True, kw_only=True)
class _ArrayPosition:
    """The position of an array in the file of its batch, with its dtype and shape."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class _Packed:
    """A batch as a worker process returns it. Without a file, the batch contains its arrays."""

    made: MadeBatch
    file: str | None

    def unpack(self) -> MadeBatch:
        if self.file is None:
            return self.made
        with open(self.file, "r+b") as file:
            os.unlink(self.file)  # deletes only the name: the memory stays while an array refers to it
            memory = mmap.mmap(file.fileno(), 0)

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, _ArrayPosition):
                return leaf
            size = int(np.prod(leaf.shape, dtype=np.int64))
            return np.frombuffer(memory, leaf.dtype, size, leaf.start).reshape(leaf.shape)

        return MadeBatch(value=_map(fill, self.made.value), skipped=self.made.skipped)


def _delete_file(future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        file = future.result().file
        if file is not None:
            with suppress(OSError):
                os.unlink(file)


def _initialize(plan: Plan, folder: str) -> None:
    global _state
    # Ctrl-C goes to all processes of a terminal. The main program decides how to react, and may continue.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _state = _WorkerState(plan=plan, folder=folder)
    threading.Thread(target=_exit_with_parent, args=(os.getppid(), folder), name="lockstep-parent", daemon=True).start()


def _exit_with_parent(parent: int, folder: str) -> None:
    """Ends this process when its parent process has ended, for any reason."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _make(epoch: int, batch: int) -> _Packed:
    assert _state is not None
    try:
        made = _state.plan.make(epoch, batch)
    except Exception as error:
        _check_picklable(error)
        raise
    arrays: list[np.ndarray] = []
    end = 0

    def place(leaf: Any) -> Any:
        nonlocal end
        if not isinstance(leaf, np.ndarray) or leaf.dtype.hasobject or not leaf.nbytes:
            return leaf
        start = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = start + leaf.nbytes
        arrays.append(leaf)
        return _ArrayPosition(start=start, dtype=leaf.dtype, shape=leaf.shape)

    placed = _map(place, made.value)
    if not arrays:
        return _Packed(made=made, file=None)
    descriptor, path = tempfile.mkstemp(dir=_state.folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for array in arrays:
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                file.write(np.ascontiguousarray(array).data)
    except OSError:  # containers often have little shared memory
        with suppress(OSError):
            os.unlink(path)
        return _Packed(made=made, file=None)
    return _Packed(made=MadeBatch(value=placed, skipped=made.skipped), file=path)


def _check_picklable(error: Exception) -> None:
    """Raises a BackendError in place of an error that cannot be pickled, which would end all worker processes."""
    import cloudpickle  # loky sends errors with it

    try:
        pickle.loads(cloudpickle.dumps(error))  # noqa: S301 - written a moment ago
    except Exception:
        raise BackendError(f"a transform failed: {type(error).__qualname__}: {error}") from error


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Applies a function to the leaves of a structure of tuples (also named ones), lists and dictionaries."""
    if isinstance(value, dict):
        return {name: _map(change, item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(change, item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_map(change, item) for item in value)
    return change(value)


def _shut_down(executors: list[Any], folder: str) -> None:
    for executor in executors:
        executor.shutdown(wait=False, kill_workers=True)
    shutil.rmtree(folder, ignore_errors=True)
