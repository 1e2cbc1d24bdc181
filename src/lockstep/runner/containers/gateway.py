"""Runs the gateway to a server in a container: the process that receives the requests and sends the heartbeats."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.runner.confinement import user_variables
from lockstep.runner.environment import program_environment
from lockstep.spools import HEARTBEAT_SOCKET

END_S: Final = 1.0
"""How long a gateway may take to end after SIGTERM, in seconds. By then it has no requests any more."""


@final
class Gateway:
    """A running gateway to a server in a container.

    It has the token of the server's requests, which the container does not get, and nothing of the container's.

    Args:
        order: the order of the server's replica, whose server has routes.
        address: the address on this node that leads to the container's port, as ``host:port``.
        report_line: called with each line that it writes, from another thread.
    """

    def __init__(self, order: ReplicaOrder, *, address: str, report_line: Callable[[str], object]) -> None:
        assert order.server is not None
        assert order.server.routes is not None
        routes, spool = order.server.routes, Path(order.spool)
        env = program_environment(replace(order, environment={}), code=(), node=os.environ)
        if order.user is not None:
            env.update(user_variables(spool, user=order.user, env=env, sockets=[spool / HEARTBEAT_SOCKET]))
        command = [sys.executable, "-P", "-m", "lockstep.serving", f"--container=http://{address}"]
        self._report_line = report_line
        self._is_closed = False
        self._last_line = ""
        self._process = subprocess.Popen(
            [*command, f"--predict-route={routes.predict}", f"--health-route={routes.health}"],
            cwd="/",
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            user=order.user,
            group=order.user,
            extra_groups=None if order.user is None else [],
        )
        self._thread = threading.Thread(target=self._read, name="gateway", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self._last_line = line.rstrip()
            self._report_line(self._last_line)

    @property
    def problem(self) -> str | None:
        """Why it has ended; None if it runs, or was closed."""
        if self._is_closed or self._process.poll() is None:
            return None
        return f"the gateway to its container ended: {self._last_line or f'exit code {self._process.returncode}'}"

    def close(self) -> None:
        """Ends it. Blocks for a bounded time. Idempotent."""
        if self.problem is None:  # otherwise it stays known
            self._is_closed = True
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_S)
        self._process.kill()
        self._process.wait()
        self._thread.join(END_S)
