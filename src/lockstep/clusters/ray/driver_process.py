"""The service's side of its driver: a process that is connected to Ray, its calls, and its end.

Each call has a connection of its own, handed over by a socket that nobody else can reach: what is written to it up to
its end is the call, what comes back up to its end is the answer, both as JSON. So an answer that does not come has but
two reasons: the process is gone, which the kernel says at once, or it does not answer in time, and is ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, final

from lockstep.errors import EngineError
from lockstep.processes import describe_exit

CALL_TIMEOUT_S: Final = 15.0
"""How long Ray may take for a call of an actor."""
SEND_TIMEOUT_S: Final = 45.0
"""How long it may take for one that sends to a shell."""
MARGIN_S: Final = 15.0
"""How much longer than Ray a driver may take before it counts as hung."""
POLL_S: Final = 0.2
"""How often it is asked, while an answer is waited for, whether the engine is there at all."""
END_S: Final = 10.0
READ_BYTES: Final = 64 * 1024
DRIVER_VARIABLE: Final = "LOCKSTEP_ENGINE_DRIVER"
"""Marks a home's drivers with its engine folder, so that they are found where their service was killed."""


@final
class DriverProcess:
    """A driver, started and not yet connected. Calls may be made from any thread.

    Args:
        what: what to call the engine in errors.
        mark: the home's engine folder.
        environment: variables that Ray reads when it is imported.
        num_ready: how many worker processes Ray is to keep ready on the head's node.
    """

    def __init__(self, *, what: str, mark: str, environment: Mapping[str, str], num_ready: int) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(CALL_TIMEOUT_S)
        env = {**os.environ, **environment, DRIVER_VARIABLE: mark}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # with it every start compiles all of Ray anew
        with theirs:
            self._process = subprocess.Popen(
                # -P: the folder that it is started in is not a place to import from.
                [sys.executable, "-P", "-m", "lockstep.clusters.ray.driver", str(theirs.fileno()), str(num_ready)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # a signal to the service's terminal is the service's alone
            )

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def call(self, name: str, *, within_s: float, is_there: Callable[[], bool], **arguments: Any) -> Any:
        """Calls a method of `lockstep.clusters.ray.driver.Driver`. Blocks, bounded.

        Args:
            name: the method.
            within_s: how long it may take; one that takes longer is ended with its process.
            is_there: says whether the engine is still there: where it is not, no answer is waited for.
            arguments: the method's.

        Raises:
            EngineError: Ray does not answer, or is not there; the process has ended, or was ended as it hung.
        """
        deadline = time.monotonic() + within_s
        call = json.dumps({"name": name, "arguments": arguments}).encode()
        try:
            ours, theirs = socket.socketpair()
            with ours:
                with theirs:
                    socket.send_fds(self._control, [b"\0"], [theirs.fileno()])
                ours.settimeout(within_s)
                ours.sendall(call)
                ours.shutdown(socket.SHUT_WR)
                said = json.loads(self._read(ours, deadline=deadline, is_there=is_there))
        except TimeoutError:
            self.end()
            raise EngineError(
                f"{self._what} does not answer: its driver did not for {within_s:.0f} s, and was ended"
            ) from None
        except (OSError, ValueError):  # the connection, or the answer, is cut off
            raise EngineError(f"the driver of {self._what} {self.how()}; another one is started") from None
        if "error" in said:
            raise EngineError(f"{self._what} does not answer: {said['error']}")
        return said["result"]

    def how(self) -> str:
        """Says how it ended, where it has been seen to: "was killed by SIGKILL". Blocks for `POLL_S` at most."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return describe_exit(self._process.wait(POLL_S))
        return "does not listen"

    def end(self) -> None:
        """Ends it. Blocks, bounded; idempotent."""
        with self._lock:
            self._control.close()
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel has it; nobody waits for it
                self._process.wait(END_S)

    def _read(self, connection: socket.socket, *, deadline: float, is_there: Callable[[], bool]) -> bytes:
        said = b""
        connection.settimeout(POLL_S)
        while True:
            try:
                data = connection.recv(READ_BYTES)
            except TimeoutError:
                if not is_there():
                    raise EngineError(f"{self._what} is not running") from None
                if time.monotonic() > deadline:
                    raise
                continue
            if not data:
                return said
            said += data
