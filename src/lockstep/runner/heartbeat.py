"""Receives the heartbeats of a program."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from lockstep.heartbeat import MAX_BEAT_BYTES, Beat, ProfileReport
from lockstep.jobs.running.progress import Progress, ProgressTracker
from lockstep.local_sockets import short_address

BEATS_AT_ONCE: Final = 64


@final
class HeartbeatListener:
    """Listens for heartbeats on a socket. If the system cannot create one, no heartbeat ever arrives.

    Args:
        path: the path of the socket; an existing file there is replaced.
        clock: returns the time in seconds since 1970 UTC.

    Attributes:
        progress: the progress that the program reported; None before its first heartbeat.
        profile: the program's last report about a profile; None if it sent none.
    """

    def __init__(self, path: Path, *, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._tracker = ProgressTracker()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self.progress: Progress | None = None
        self.profile: ProfileReport | None = None
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
            with short_address(path) as address:
                self._socket.bind(address)
            os.chmod(path, 0o600)

    def fileno(self) -> int:
        """Returns the file descriptor to wait for."""
        return self._socket.fileno()

    def read(self) -> bool:
        """Reads the heartbeats that have arrived, without waiting; returns whether there was any."""
        heard = False
        with contextlib.suppress(BlockingIOError):
            for _ in range(BEATS_AT_ONCE):  # a flood of heartbeats must not block the runner
                beat = Beat.from_bytes(self._socket.recv(MAX_BEAT_BYTES))
                if beat is not None:
                    heard = True
                    self.progress = self._tracker.add(beat, now_s=self._clock())
                    self.profile = beat.profile or self.profile
        return heard

    def close(self) -> None:
        """Closes and removes the socket."""
        self._socket.close()
        with contextlib.suppress(OSError):
            self._path.unlink()
