"""A Ray cluster that Lockstep did not start, for tests that attach to one. Its nodes are processes of this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, final

from lockstep.clusters.ray.processes import end_processes, node_processes
from lockstep.processes import ProcessIdentity

MARK: Final = "FOREIGN_RAY"
UP_S: Final = 60.0


@final
class _Node:
    def __init__(self, process: subprocess.Popen[bytes], *, folder: str, mark: str) -> None:
        self._process = process
        self._first = ProcessIdentity.of(process.pid)
        self._folder = folder
        self._mark = mark

    def end(self) -> None:
        end_processes(
            lambda: node_processes(self._first, folder=self._folder, variable=MARK, mark=self._mark), what="the Ray"
        )
        self._process.wait(UP_S)


@final
class ForeignRay:
    """A Ray head with nodes. As a context manager, it ends its processes.

    Attributes:
        address: the address ("host:port") of its control store, once `start` was called.
        environment: the environment variables that a process needs to connect to it, with its token.
    """

    def __init__(self) -> None:
        self._made = tempfile.TemporaryDirectory(prefix="lockstep-ray-")
        self._nodes: dict[str, _Node] = {}
        self.address = ""
        token = Path(self._made.name, "token")
        token.write_text("t" * 64)
        token.chmod(0o600)
        self.environment = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token)}

    def __enter__(self) -> ForeignRay:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(list(self._nodes)):
            self.end(name)
        self._made.cleanup()

    def start(self, *, cpus: int, port: int = 0, own_disk: Path | None = None) -> None:
        """Starts the head.

        Args:
            cpus: the number of cores that the node reports.
            port: the port of its control store; 0 for a free one.
            own_disk: an existing folder on which the node mounts a file system of its own. This needs root.
        """
        log = self._start("head", "--head", f"--port={port}", "--include-dashboard=false", cpus=cpus, own_disk=own_disk)
        found = re.search(r"--address='([^']+)'", log)
        assert found is not None
        self.address = found.group(1)

    def add(self, name: str, *, cpus: int, own_disk: Path | None = None) -> None:
        """Starts a node that joins the cluster; see `start`."""
        self._start(name, f"--address={self.address}", cpus=cpus, own_disk=own_disk)

    def end(self, name: str) -> None:
        """Ends a node, as if its machine were switched off."""
        self._nodes.pop(name).end()

    def _start(self, name: str, *arguments: str, cpus: int, own_disk: Path | None) -> str:
        folder = tempfile.mkdtemp(dir=self._made.name)  # a short path, because Ray's sockets are in it
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *arguments),
            *(f"--node-ip-address=127.0.0.{2 + len(self._nodes)}", f"--temp-dir={folder}/r"),
            *(f"--num-cpus={cpus}", "--num-gpus=0", f"--memory={32 << 30}"),
        ]
        if own_disk is not None:
            script = 'mount -t tmpfs none "$0" && exec "$@"'
            command = ["unshare", "--mount", "sh", "-c", script, str(own_disk), *command]
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        log = Path(folder, "log")
        with log.open("wb") as file:
            process = subprocess.Popen(
                command,
                stdout=file,
                stderr=file,
                start_new_session=True,
                env={**env, **self.environment, MARK: folder},
            )
        self._nodes[name] = _Node(process, folder=folder, mark=folder)
        deadline = time.monotonic() + UP_S
        while "Ray runtime started" not in log.read_text():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        return log.read_text()
