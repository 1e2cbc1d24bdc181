"""Finishes background work, such as writing a checkpoint, before this process ends.

The wait is bounded. Work that is not finished in time is reported on standard error and by the exit code.

When a script ends, calls `sys.exit` or raises, Python stops its thread pools before it calls `atexit` functions, so a
checkpoint that is being written would fail. Work that is registered here is finished before that, and no new work is
accepted afterwards. The work is also finished at SIGTERM, and at SIGHUP (a terminal was closed), unless the script
handles the signal itself. Then the process ends by the signal.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 # pyright: ignore[reportUnusedImport] - its exit function runs after ours
import contextlib
import logging
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final, cast, final

from lockstep.errors import LockstepError, StorageWriteError

EXIT_TIMEOUT_S: Final = 300.0
"""How long the end of a script waits for background work, in seconds."""

SIGTERM_TIMEOUT_S: Final = 25.0
"""The same after a signal: SIGTERM is often followed by SIGKILL after 30 s."""

STARTS_THREADS: Final = not (3, 12, 0) <= sys.version_info[:3] <= (3, 12, 1)
"""Whether threads can be started while the end of a script waits. Python 3.12.0 and 3.12.1 refuse to start them
(https://github.com/python/cpython/issues/113964); with these versions, work that needs new threads should not be left
to the background."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)

_pending: dict[object, tuple[Callable[[], None], str]] = {}
_attempts: queue.SimpleQueue[_Attempt] = queue.SimpleQueue()
_lock = threading.Lock()
_pid: int | None = None
_exit_code = 0
_is_ending = False


@final
class _Attempt:
    """One call of a ``finish`` function, made by the finishing thread."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self.error: BaseException | None = None
        self.is_over = threading.Event()

    def make(self) -> None:
        try:
            self._finish()
        except Exception as error:  # `finish_now` reports it, whatever it is
            self.error = error
        self.is_over.set()


def finish_at_exit(finish: Callable[[], None], *, what: str) -> Callable[[], None]:
    """Registers background work to be finished before this process ends.

    If the work fails, or takes longer than `EXIT_TIMEOUT_S`, a line on standard error reports it, and the exit code is
    not 0. The work is finished at signals too only if this function is called from the main thread.

    Args:
        finish: blocks until the work is finished; raises a `LockstepError` if it fails. Called from a thread of its
            own.
        what: what is lost if the work is not finished, for the error line: "checkpoint 30 in /tmp/checkpoints".

    Returns:
        A function that cancels the registration, to be called when the work is finished. A second call does nothing.

    Raises:
        StorageWriteError: the script has ended already, and a remaining thread or an `atexit` function makes the call.
    """
    global _pid, _exit_code, _is_ending, _attempts
    if _pid != os.getpid():
        # The first call in this process. A forked child does not finish the work of its parent.
        _pending.clear()
        _pid, _is_ending = os.getpid(), False
        # The thread is started here, before the script ends: see `STARTS_THREADS`.
        _attempts = queue.SimpleQueue()
        threading.Thread(target=_make_attempts, args=(_attempts,), name="lockstep-finishing", daemon=True).start()
        # `atexit` would be too late. `concurrent.futures` registers its own exit function in the same way.
        cast("Any", threading)._register_atexit(_finish_before_threads_end)
    if _is_ending:
        _exit_code = _exit_code or StorageWriteError.exit_code
        raise StorageWriteError(
            f"{what} cannot be written: the script has ended already",
            action="write it before the script's last line, and join threads that write",
        )
    for number in _SIGNALS if threading.current_thread() is threading.main_thread() else ():
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end_by_signal)
    key = object()
    with _lock:
        _pending[key] = (finish, what)
    return lambda: _unregister(key)


def finish_now(timeout_s: float) -> bool:
    """Finishes all registered work, and reports on standard error what could not be finished.

    Args:
        timeout_s: how long to wait for all work together, in seconds.

    Returns:
        Whether all work was finished, in this call and in earlier ones.
    """
    global _exit_code
    if _pid != os.getpid():
        return True
    deadline = time.monotonic() + timeout_s
    with _lock:
        entries = list(_pending.items())
    for key, (finish, what) in entries:
        attempt = _Attempt(finish)
        _attempts.put(attempt)
        if not attempt.is_over.wait(max(0.0, deadline - time.monotonic())):
            _exit_code = _exit_code or StorageWriteError.exit_code
            _print_error(f"{what} was not written: it was not finished within {timeout_s:g} s")
        elif attempt.error is not None:
            error = attempt.error
            code = error.exit_code if isinstance(error, LockstepError) else StorageWriteError.exit_code
            _exit_code = _exit_code or code
            _print_error(f"{what} was not written: {error}")
        _unregister(key)
    return _exit_code == 0


def _unregister(key: object) -> None:
    with _lock:
        _pending.pop(key, None)


def _make_attempts(attempts: queue.SimpleQueue[_Attempt]) -> None:
    while True:
        attempts.get().make()


def _finish_before_threads_end() -> None:
    global _is_ending
    _is_ending = True
    finish_now(EXIT_TIMEOUT_S)


def _end_by_signal(number: int, frame: FrameType | None) -> None:
    del frame
    finish_now(SIGTERM_TIMEOUT_S)
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _print_error(line: str) -> None:
    _flush()
    os.write(2, f"lockstep: error: {line.splitlines()[0]}\n".encode())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()


def _end_with_code() -> None:
    """Ends the process with an error's exit code; this late, `os._exit` is the only way to set it."""
    if _exit_code and _pid == os.getpid():
        logging.shutdown()
        _flush()
        os._exit(_exit_code)


# Registered as early as possible, because `atexit` calls functions that are registered later first.
atexit.register(_end_with_code)
