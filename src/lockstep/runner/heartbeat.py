"""Hears a program's heartbeats."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from lockstep.heartbeat import MAX_BEAT_BYTES, Beat
from lockstep.jobs.running.progress import Progress, ProgressFold
from lockstep.local_sockets import short_address

BEATS_AT_ONCE: Final = 64


@final
class HeartbeatListener:
    """Listens on a socket of its own; without one, where the system has none, nothing is ever heard.

    Args:
        path: where the socket is made; what lies there is replaced.
        clock: seconds since 1970 UTC.

    Attributes:
        progress: how far the program said it is; None before its first heartbeat.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._fold = ProgressFold()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.progress: Progress | None = None
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            with short_address(path) as address:
                self._socket.bind(address)
            os.chmod(path, 0o600)

    def fileno(self) -> int:
        """Returns the file descriptor to wait on."""
        return self._socket.fileno()

    def read(self) -> bool:
        """Takes what has come, without waiting; returns whether a heartbeat was among it."""
        heard = False
        with contextlib.suppress(BlockingIOError):
            for _ in range(BEATS_AT_ONCE):  # a program that writes without end must not keep the runner
                beat = Beat.from_bytes(self._socket.recv(MAX_BEAT_BYTES))
                if beat is not None:
                    heard = True
                    self.progress = self._fold.take(beat, now_s=self._clock())
        return heard

    def close(self) -> None:
        """Removes the socket."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
