"""What goes on in the background is finished before this process ends, within a bound, or its end says that it is not.

At a normal end, `sys.exit` or an uncaught exception Python stops its pools of threads before it calls what `atexit` was
given: a checkpoint that is being written then fails. So what is registered here is finished before that, and nothing is
begun after it. At SIGTERM, and at SIGHUP where a terminal is closed, it is finished too, where the script does not
handle that signal itself, and the process then ends by the signal.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 # pyright: ignore[reportUnusedImport] - its own end comes after ours
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
"""How long the end of a script waits for what goes on."""

SIGTERM_TIMEOUT_S: Final = 25.0
"""The same after a signal: those who send SIGTERM often send SIGKILL after 30 s."""

STARTS_THREADS: Final = not (3, 12, 0) <= sys.version_info[:3] <= (3, 12, 1)
"""Whether threads can be started while a script's end waits. Two versions of Python refuse that
(https://github.com/python/cpython/issues/113964); what needs such threads is best finished at once there."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGHUP)

_pending: dict[object, tuple[Callable[[], None], str]] = {}
_attempts: queue.SimpleQueue[_Attempt] = queue.SimpleQueue()
_lock = threading.Lock()
_pid: int | None = None
_exit_code = 0
_is_ending = False


@final
class _Attempt:
    """One call of what finishes something, made by the finishing thread."""

    def __init__(self, finish: Callable[[], None]) -> None:
        self._finish = finish
        self.error: BaseException | None = None
        self.is_over = threading.Event()

    def make(self) -> None:
        try:
            self._finish()
        except Exception as error:  # whatever it is, somebody has to hear of it
            self.error = error
        self.is_over.set()


def finish_at_exit(finish: Callable[[], None], *, what: str) -> Callable[[], None]:
    """Has something that goes on in the background be finished before this process ends.

    Where it fails, or takes longer than `EXIT_TIMEOUT_S`, one line on the standard error says so and the exit code is
    not 0. To be called by the main thread where signals are to wait for it too.

    Args:
        finish: blocks until it is done; raises a `LockstepError` where it is not. Called from a thread of its own.
        what: what is lost otherwise, for that line: "checkpoint 30 in /tmp/checkpoints".

    Returns:
        What takes it back, once it is finished; a second call does nothing.

    Raises:
        StorageWriteError: the script has ended, and a thread or what `atexit` calls goes on.
    """
    global _pid, _exit_code, _is_ending, _attempts
    if _pid != os.getpid():
        # Also in a child that was forked: what its parent has begun is none of its business.
        _pending.clear()
        _pid, _is_ending = os.getpid(), False
        # There before the script ends: see `STARTS_THREADS`.
        _attempts = queue.SimpleQueue()
        threading.Thread(target=_make_attempts, args=(_attempts,), name="lockstep-finishing", daemon=True).start()
        # `atexit` would come too late. Those who run pools of threads register in the same way.
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
    return lambda: _take_back(key)


def finish_now(timeout_s: float) -> bool:
    """Finishes what goes on, and says what could not be finished.

    Args:
        timeout_s: for all of it.

    Returns:
        Whether all of it is done.
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
            _say(f"{what} is not there: it was not finished within {timeout_s:g} s")
        elif attempt.error is not None:
            error = attempt.error
            _exit_code = error.exit_code if isinstance(error, LockstepError) else StorageWriteError.exit_code
            _say(f"{what} is not there: {error}")
        _take_back(key)
    return _exit_code == 0


def _take_back(key: object) -> None:
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


def _say(line: str) -> None:
    _flush()
    os.write(2, f"lockstep: error: {line.splitlines()[0]}\n".encode())


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            stream.flush()


def _end_with_code() -> None:
    """Ends the process with an error's code: Python has no other way so late."""
    if _exit_code and _pid == os.getpid():
        logging.shutdown()
        _flush()
        os._exit(_exit_code)


# As early as possible, so that what others have registered is called before.
atexit.register(_end_with_code)
