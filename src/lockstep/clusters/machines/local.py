"""Simulated machines: local Ray nodes, which cost nothing, for trying out a cluster on one machine."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Final, final

from typing_extensions import override

from lockstep.clusters.machines.base import AbstractMachines
from lockstep.clusters.ray.head import FOLDER_PREFIX, EmbeddedHead
from lockstep.clusters.ray.node_start import start_arguments
from lockstep.clusters.ray.processes import end_processes, node_processes
from lockstep.errors import CorruptDataError, EngineError
from lockstep.processes import ProcessIdentity

MACHINE_VARIABLE: Final = "LOCKSTEP_MACHINE"
"""Environment variable that marks a local machine's processes with its record's path. Runners and programs lack it."""


@final
class LocalMachines(AbstractMachines):
    """Simulated machines, each a Ray node that runs on this machine in its own process session.

    A machine's record is written before its process is started, so the machine is found even if the process that
    started it was killed.

    Args:
        folder: the folder of the machines' records.
        head: the head that the nodes join.
    """

    def __init__(self, *, folder: Path, head: EmbeddedHead) -> None:
        self._folder = folder
        self._head = head
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._lock = threading.Lock()

    @override
    def names(self) -> frozenset[str]:
        alive: set[str] = set()
        for path in sorted(self._folder.glob("*.json")):
            process, _ = _read(path)
            if process is not None and process.is_alive:
                alive.add(path.stem)
            elif self._members(path.stem):
                alive.add(path.stem)  # its first process has ended, or was never recorded
        return frozenset(alive)

    @override
    def words(self, name: str) -> str:
        return ""

    @override
    def create(self, name: str, *, node_type: str) -> None:
        if name in self.names():
            return
        head = self._head.find()
        if head is None:
            raise EngineError("the head that machines join is not running")
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # The folder of Ray's sockets: its path must be short, and each node needs its own.
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
        self._write(name, process=None, folder=folder)
        process = self._spawn(name, node_type=node_type, head_address=head.address, folder=folder)
        with self._lock:
            self._children[name] = process
        self._write(name, process=ProcessIdentity.of(process.pid), folder=folder)

    @override
    def remove(self, name: str) -> None:
        path = self._path(name)
        _, folder = _read(path)
        end_processes(lambda: self._members(name), what=f"machine {name}")
        with self._lock:
            child = self._children.pop(name, None)
        if child is not None:
            child.wait()
        if folder is not None and Path(folder).name.startswith(FOLDER_PREFIX):
            shutil.rmtree(folder, ignore_errors=True)
        path.with_suffix(".log").unlink(missing_ok=True)
        path.unlink(missing_ok=True)

    def _spawn(self, name: str, *, node_type: str, head_address: str, folder: str) -> subprocess.Popen[bytes]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, every Ray process would compile all of Ray again
        env.update(self._head.environment())
        env[MACHINE_VARIABLE] = str(self._path(name))
        command = [
            *(sys.executable, "-P", "-m", "ray.scripts.scripts"),  # see `lockstep.clusters.ray.head`
            *start_arguments(name, node_type=node_type, head_address=head_address),
            "--num-cpus=1",  # each replica takes a small share; Lockstep's scheduler counts cores
            "--num-gpus=0",
            f"--temp-dir={folder}/r",  # see `lockstep.clusters.ray.head`
            *([f"--node-ip-address={_loopback_address(name)}"] if sys.platform == "linux" else []),
        ]
        with self._path(name).with_suffix(".log").open("wb") as log:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _members(self, name: str) -> list[ProcessIdentity]:
        process, folder = _read(self._path(name))
        return node_processes(process, folder=folder, variable=MACHINE_VARIABLE, mark=str(self._path(name)))

    def _path(self, name: str) -> Path:
        return self._folder.absolute() / f"{name}.json"

    def _write(self, name: str, *, process: ProcessIdentity | None, folder: str) -> None:
        document = {"process": None if process is None else process.to_json(), "folder": folder}
        partial = self._path(name).with_suffix(".partial")
        partial.write_text(json.dumps(document))
        partial.replace(self._path(name))


def _read(path: Path) -> tuple[ProcessIdentity | None, str | None]:
    try:
        document = json.loads(path.read_text())
        process = None if document["process"] is None else ProcessIdentity.from_json(document["process"])
        return process, str(document["folder"])
    except (FileNotFoundError, ValueError, KeyError, TypeError, CorruptDataError):
        return None, None


def _loopback_address(name: str) -> str:
    """Returns an address in 127/8 for a machine, so that each node has its own address, as real machines have."""
    digest = hashlib.sha256(name.encode()).digest()
    return f"127.{1 + digest[0] % 250}.{digest[1]}.{1 + digest[2] % 250}"
