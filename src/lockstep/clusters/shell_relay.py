"""Relays the bytes of a shell to and from a replica's runner. Only the runner interprets them."""

from __future__ import annotations

import abc
import contextlib
import socket
import threading
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

from typing_extensions import override

from lockstep.errors import UnavailableError
from lockstep.local_sockets import short_address
from lockstep.spools import SHELL_SOCKET

CONNECT_TIMEOUT_S: Final = 5.0
SEND_TIMEOUT_S: Final = 30.0
READ_BYTES: Final = 64 * 1024
IDLE_S: Final = 60.0
"""A relayed shell is closed if nobody has used it for this long, because its client is gone."""
WATCH_INTERVAL_S: Final = 5.0


class AbstractShell(abc.ABC):
    """A connection to a replica's runner. Its protocol is the frames of `lockstep.jobs.running.shell_frames`.

    One thread may send while another receives. Any thread may close the connection.
    """

    @abc.abstractmethod
    def send(self, data: bytes) -> None:
        """Sends bytes. Blocks while the runner is busy, with a timeout.

        Raises:
            UnavailableError: the runner is gone, or accepts no input.
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def receive(self, *, timeout_s: float) -> bytes | None:
        """Returns the next bytes: ``b""`` if none arrive within the timeout, None at the end of the connection.

        Raises:
            EngineError: the engine does not answer.
        """

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the connection, which ends the shell's command. Idempotent."""


@final
class LocalShell(AbstractShell):
    """A shell on this node, connected through the runner's socket.

    Args:
        spool: the replica's spool folder.

    Raises:
        UnavailableError: the runner does not listen, because its program has not started or has ended.
    """

    def __init__(self, spool: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(CONNECT_TIMEOUT_S)
        try:
            with short_address(Path(spool) / SHELL_SOCKET) as address:
                self._socket.connect(address)
        except OSError as error:
            self._socket.close()
            raise UnavailableError(
                f"the replica accepts no shells now: {error.strerror}", action="wait until its program is running"
            ) from None
        self._socket.settimeout(SEND_TIMEOUT_S)
        self._reader = self._socket.dup()  # has its own timeout, for receiving

    @override
    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            raise UnavailableError(f"the shell accepts no input: {error}") from None

    @override
    def receive(self, *, timeout_s: float) -> bytes | None:
        try:
            self._reader.settimeout(timeout_s)
            return self._reader.recv(READ_BYTES) or None
        except TimeoutError:
            return b""
        except OSError:
            return None

    @override
    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that is receiving
        self._socket.close()
        self._reader.close()


@final
class ShellRelay:
    """Keeps a node's open shells by id, for callers that reach the node through the engine. Thread-safe.

    Args:
        clock: returns a monotonic time in seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._shells: dict[str, LocalShell] = {}
        self._last_used: dict[str, float] = {}

    def open(self, spool: str) -> str:
        """Opens a shell and returns its id.

        Raises:
            UnavailableError: the replica accepts no shells now.
        """
        shell = LocalShell(spool)
        shell_id = uuid.uuid4().hex
        with self._lock:
            if not self._shells:
                threading.Thread(target=self._watch, name="shells", daemon=True).start()
            self._shells[shell_id] = shell
            self._last_used[shell_id] = self._clock()
        return shell_id

    def send(self, shell_id: str, data: bytes) -> None:
        """Sends bytes to a shell; see `AbstractShell.send`."""
        shell = self._find(shell_id)
        if shell is None:
            raise UnavailableError("the shell has ended")
        shell.send(data)

    def receive(self, shell_id: str, *, timeout_s: float) -> bytes | None:
        """Returns the next bytes from a shell; see `AbstractShell.receive`."""
        shell = self._find(shell_id)
        return None if shell is None else shell.receive(timeout_s=timeout_s)

    def close(self, shell_id: str) -> None:
        """Closes a shell. Idempotent."""
        with self._lock:
            shell = self._shells.pop(shell_id, None)
            self._last_used.pop(shell_id, None)
        if shell is not None:
            shell.close()

    def close_idle(self) -> bool:
        """Closes the shells that nobody has used for `IDLE_S`. Returns whether any shell is left open."""
        with self._lock:
            idle = [shell_id for shell_id, used_s in self._last_used.items() if self._clock() - used_s > IDLE_S]
        for shell_id in idle:
            self.close(shell_id)
        with self._lock:
            return bool(self._shells)

    def _find(self, shell_id: str) -> LocalShell | None:
        with self._lock:
            if shell_id in self._last_used:
                self._last_used[shell_id] = self._clock()
            return self._shells.get(shell_id)

    def _watch(self) -> None:
        while self.close_idle():
            time.sleep(WATCH_INTERVAL_S)
