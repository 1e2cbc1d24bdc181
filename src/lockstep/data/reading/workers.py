"""Processes that make batches, for transforms that hold Python's lock; arrays come back by files in memory."""

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

from lockstep.data.reading.plan import Made, Plan
from lockstep.errors import BackendError

_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - a folder of this process's own is made in it
_ALIGNMENT: Final = 64
_PARENT_POLL_S: Final = 1.0
_begun: _Begun | None = None
"""In a process of these: what it makes batches of."""


@final
class Workers:
    """A pool of processes that make batches by a plan.

    They start with the first batch that is asked for, and end with this object, or when the program does. They are
    started by loky: the program's main module is not run again in them, and that one is killed is told. After that
    others start with the next batch that is asked for.

    Args:
        plan: goes to each of the processes, by cloudpickle.
        num_processes: how many.
    """

    def __init__(self, plan: Plan, *, num_processes: int) -> None:
        self._plan = plan
        self._folder = tempfile.mkdtemp(
            prefix="lockstep-batches-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None
        )
        self._num_processes = num_processes
        self._executors: list[Any] = []  # one at most
        weakref.finalize(self, _end, self._executors, self._folder)

    def submit(self, epoch: int, batch: int) -> Future[Any]:
        """Has a batch made; the future's result is for `take`."""
        from loky.process_executor import BrokenProcessPool  # slow to import, and most programs need no processes

        try:
            return self._executor().submit(_make, epoch, batch)
        except BrokenProcessPool:  # since the last one was taken
            self._drop_executor()
            return self._executor().submit(_make, epoch, batch)

    def _executor(self) -> Any:
        from loky import ProcessPoolExecutor

        if not self._executors:
            self._executors.append(
                ProcessPoolExecutor(self._num_processes, initializer=_begin, initargs=(self._plan, self._folder))
            )
        return self._executors[0]

    def _drop_executor(self) -> None:
        while self._executors:
            self._executors.pop().shutdown(wait=False, kill_workers=True)

    def take(self, future: Future[Any]) -> Made:
        """Waits for a batch.

        Raises:
            BackendError: a process ended.
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
        """Gives back the memory of a batch that nobody will take, when it is made."""
        future.add_done_callback(_forget)


@final
@dataclass(frozen=True, kw_only=True)
class _Begun:
    plan: Plan
    folder: str


@final
@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where an array lies in a file."""

    start: int
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


@final
@dataclass(frozen=True, kw_only=True)
class _Packed:
    """A batch on its way; without a file its arrays came with it."""

    made: Made
    file: str | None

    def unpack(self) -> Made:
        if self.file is None:
            return self.made
        with open(self.file, "r+b") as file:
            os.unlink(self.file)  # its name; the memory is there as long as an array lies in it
            memory = mmap.mmap(file.fileno(), 0)

        def fill(leaf: Any) -> Any:
            if not isinstance(leaf, _Place):
                return leaf
            size = int(np.prod(leaf.shape, dtype=np.int64))
            return np.frombuffer(memory, leaf.dtype, size, leaf.start).reshape(leaf.shape)

        return Made(value=_map(fill, self.made.value), skipped=self.made.skipped)


def _forget(future: Future[Any]) -> None:
    if not future.cancelled() and future.exception() is None:
        file = future.result().file
        if file is not None:
            with suppress(OSError):
                os.unlink(file)


def _begin(plan: Plan, folder: str) -> None:
    global _begun
    # Ctrl-C goes to all processes of a terminal: the program decides what follows, and it may well go on.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _begun = _Begun(plan=plan, folder=folder)
    threading.Thread(target=_end_with, args=(os.getppid(), folder), name="lockstep-parent", daemon=True).start()


def _end_with(parent: int, folder: str) -> None:
    """Ends this process when the one that started it has ended, however that was."""
    while os.getppid() == parent:
        time.sleep(_PARENT_POLL_S)
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _make(epoch: int, batch: int) -> _Packed:
    assert _begun is not None
    try:
        made = _begun.plan.make(epoch, batch)
    except Exception as error:
        _check_portable(error)
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
        return _Place(start=start, dtype=leaf.dtype, shape=leaf.shape)

    placed = _map(place, made.value)
    if not arrays:
        return _Packed(made=made, file=None)
    descriptor, path = tempfile.mkstemp(dir=_begun.folder)
    try:
        with os.fdopen(descriptor, "wb") as file:
            for array in arrays:
                file.write(b"\0" * (-file.tell() % _ALIGNMENT))
                file.write(np.ascontiguousarray(array).data)
    except OSError:  # a container has little of such memory
        with suppress(OSError):
            os.unlink(path)
        return _Packed(made=made, file=None)
    return _Packed(made=Made(value=placed, skipped=made.skipped), file=path)


def _check_portable(error: Exception) -> None:
    """Raises an error that can go to the program instead of one that cannot: that would end all of the processes."""
    import cloudpickle  # by which loky sends it

    try:
        pickle.loads(cloudpickle.dumps(error))  # noqa: S301 - written a moment ago
    except Exception:
        raise BackendError(f"a transform failed: {type(error).__qualname__}: {error}") from error


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Changes the leaves of tuples, named ones too, lists and dictionaries; anything else is a leaf."""
    if isinstance(value, dict):
        return {name: _map(change, item) for name, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(_map(change, item) for item in value))
    if isinstance(value, tuple | list):
        return type(value)(_map(change, item) for item in value)
    return change(value)


def _end(executors: list[Any], folder: str) -> None:
    for executor in executors:
        executor.shutdown(wait=False, kill_workers=True)
    shutil.rmtree(folder, ignore_errors=True)
