"""The service's side of the driver: starts the process that is connected to Ray, calls it, and ends it.

Each call has its own connection, which is passed over a socket that no other process can reach. The call is written to
the connection as JSON up to its end, and the answer comes back in the same way. So there are only two reasons for a
missing answer: the process has ended, which the kernel reports at once, or it does not answer in time and is ended.
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
"""How long Ray may take to call an actor."""
SEND_TIMEOUT_S: Final = 45.0
"""How long Ray may take for a call that sends to a shell."""
MARGIN_S: Final = 15.0
"""How much longer than Ray a driver may take to answer before it counts as hung."""
POLL_S: Final = 0.2
"""The interval of checking that the engine still exists while a call waits for its answer."""
END_S: Final = 10.0
READ_BYTES: Final = 64 * 1024
DRIVER_VARIABLE: Final = "LOCKSTEP_ENGINE_DRIVER"
"""Environment variable that marks a home's drivers with its engine folder, so that they are found without a service."""


@final
class DriverProcess:
    """A driver process. It is started, but not yet connected to Ray. Any thread may make calls.

    Args:
        what: the engine's name in error messages.
        mark: the home's engine folder.
        environment: the environment variables that Ray reads when it is imported.
        num_ready: the number of worker processes that Ray keeps ready on the head's node.
    """

    def __init__(self, *, what: str, mark: str, environment: Mapping[str, str], num_ready: int) -> None:
        self._what = what
        self._lock = threading.Lock()
        self._control, theirs = socket.socketpair()
        self._control.settimeout(CALL_TIMEOUT_S)
        env = {**os.environ, **environment, DRIVER_VARIABLE: mark}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, every start would compile all of Ray again
        with theirs:
            self._process = subprocess.Popen(
                # -P: do not import from the working folder.
                [sys.executable, "-P", "-m", "lockstep.clusters.ray.driver", str(theirs.fileno()), str(num_ready)],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # signals of the service's terminal do not reach it
            )

    @property
    def is_alive(self) -> bool:
        """Whether the process is running."""
        return self._process.poll() is None

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def call(self, name: str, *, within_s: float, is_there: Callable[[], bool], **arguments: Any) -> Any:
        """Calls a method of `lockstep.clusters.ray.driver.Driver`. Blocks, with a timeout.

        Args:
            name: the name of the method.
            within_s: the timeout in seconds. If the call takes longer, the process is ended.
            is_there: returns whether the engine still exists. If it does not, the call stops waiting.
            arguments: the arguments of the method.

        Raises:
            EngineError: Ray does not answer or is not running, or the process has ended, or it hung and was ended.
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
                answer = json.loads(self._read(ours, deadline=deadline, is_there=is_there))
        except TimeoutError:
            self.end()
            raise EngineError(
                f"{self._what} does not answer: its driver did not respond within {within_s:.0f} s and was killed"
            ) from None
        except (OSError, ValueError):  # the connection or the answer was cut off
            raise EngineError(
                f"the driver of {self._what} {self.describe_exit()}; a new driver is being started"
            ) from None
        if "error" in answer:
            raise EngineError(f"{self._what} does not answer: {answer['error']}")
        return answer["result"]

    def describe_exit(self) -> str:
        """Returns how the process ended: "was killed by SIGKILL"; "does not listen" if it still runs.

        Blocks for `POLL_S` at most.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            return describe_exit(self._process.wait(POLL_S))
        return "does not listen"

    def end(self) -> None:
        """Ends the process. Blocks, with a timeout. Idempotent."""
        with self._lock:
            self._control.close()
            self._process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel will end it; do not wait longer
                self._process.wait(END_S)

    def _read(self, connection: socket.socket, *, deadline: float, is_there: Callable[[], bool]) -> bytes:
        answer = b""
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
                return answer
            answer += data
