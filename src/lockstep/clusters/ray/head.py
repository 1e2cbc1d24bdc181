"""The embedded Ray head: a process tree in a session of its own.

The head is found and ended by the recorded identity of its process, or by the mark that its processes carry. It is
never ended with ``ray stop``, which ends every Ray on the machine, and never found through Ray's own session files,
which may name a dead cluster.
"""

from __future__ import annotations

import abc
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Final, final

from typing_extensions import override

from lockstep.clusters.ray.processes import end_processes, node_processes
from lockstep.errors import CorruptDataError, EngineError
from lockstep.home import Home
from lockstep.processes import ProcessIdentity

START_TIMEOUT_S: Final = 90.0
FOLDER_PREFIX: Final = "lockstep-ray-"
ENGINE_VARIABLE: Final = "LOCKSTEP_ENGINE"
"""Environment variable that marks a head's processes with the home's engine folder. Runners and programs lack it."""
ACTORS_MODULE: Final = "lockstep.clusters.ray.actors"
"""The module that Ray's worker processes import ahead of their first task."""

SYSTEM_CONFIG: Final = {
    # If the head dies, Ray would otherwise kill the runners before they have ended their programs.
    "kill_child_processes_on_worker_exit": False,
    # Ray's default is 15. On a busy machine, an actor then takes 20 s to start instead of 3 s, and calls time out.
    "worker_niceness": 0,
}
"""Ray's settings for all nodes of the cluster. Each node reads them from the head."""

HEAD_RESOURCE: Final = "node:__internal_head__"
"""Ray's own resource that only the head's node has; its amount is 1."""
REPLICA_RESOURCE: Final = "replica"
NUM_REPLICAS_MAX: Final = 10_000

# Not 127.0.0.1, which Ray would replace by the machine's external address: a laptop that changes networks keeps its
# jobs. Where not all of 127/8 is loopback (macOS), Ray keeps 127.0.0.1.
NODE_ADDRESS: Final = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"


@final
@dataclass(frozen=True, kw_only=True)
class HeadRecord:
    """The record of a head in its home.

    Attributes:
        process: the process that started all others, and leads their session; None just before it is started.
        address: "host:port" of Ray's control store; "" until it answers.
        folder: the folder of Ray's own files. Its path is short because of the sockets in it.
    """

    process: ProcessIdentity | None
    address: str
    folder: str

    @property
    def pid(self) -> int:
        """The process id of the head."""
        assert self.process is not None, "the record of a head that was started"
        return self.process.pid


@final
@dataclass(frozen=True, kw_only=True)
class HeadOptions:
    """The options with which a head is started.

    Attributes:
        address: the address of the head's node.
        port: the port of Ray's control store; 0 for a free port.
        num_replicas: the maximum number of replicas on the head's own node.
        environment: environment variables with Ray's own settings.
    """

    address: str = NODE_ADDRESS
    port: int = 0
    num_replicas: int = NUM_REPLICAS_MAX
    environment: Mapping[str, str] = field(default_factory=dict[str, str])


class AbstractHead(abc.ABC):
    """The Ray head that an engine talks to."""

    @abc.abstractmethod
    def find(self) -> HeadRecord | None:
        """Returns the running head; None if there is none. Does not block."""

    @abc.abstractmethod
    def start(self) -> HeadRecord:
        """Returns the running head. Starts it if none is running and Lockstep owns it. Blocks until it answers.

        Raises:
            EngineError: the head did not start.
        """

    @abc.abstractmethod
    def stop(self) -> None:
        """Ends the head if Lockstep owns it. Idempotent.

        Raises:
            EngineError: the head does not end.
        """


@final
class EmbeddedHead(AbstractHead):
    """Starts, finds and ends the Ray head of one home. Only one caller at a time may start or stop it.

    Args:
        home: the home that keeps the head's records.
        options: the options with which the head is started.
    """

    def __init__(self, home: Home, *, options: HeadOptions | None = None) -> None:
        self._options = options or HeadOptions()
        self._folder = home.engine
        self._mark = os.path.realpath(home.engine)  # the same for all paths of a home
        self._record_path = home.engine / "head.json"
        self._log_path = home.engine / "head.log"
        self._token_path = home.engine / "ray-token"
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Returns the environment variables that a process needs to connect to this head.

        Creates the token if there is none. A home's token never changes, because processes that have read it would not
        notice a new one.
        """
        if not self._token_path.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            # Written to a temporary file and renamed, so that a killed process leaves no empty token.
            partial = self._token_path.with_suffix(".partial")
            partial.unlink(missing_ok=True)
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as file:
                file.write(secrets.token_hex(32))
            partial.replace(self._token_path)
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token_path),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    @override
    def find(self) -> HeadRecord | None:
        record = self._read()
        if record is None or record.process is None or not record.address:
            return None
        return record if record.process.is_alive else None

    @override
    def start(self) -> HeadRecord:
        record = self.find()
        if record is not None:
            return record
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.stop()  # what a head that died left running
        # The folder of Ray's sockets. A socket's path may have at most 107 bytes, and a home's path may be longer.
        record = HeadRecord(process=None, address="", folder=tempfile.mkdtemp(prefix=FOLDER_PREFIX))
        self._write(record)
        process = self._process = self._spawn(record.folder)
        identity = ProcessIdentity.of(process.pid)
        assert identity is not None, "a child that nobody has waited for is there, ended or not"
        record = replace(record, process=identity)
        self._write(record)
        record = replace(record, address=self._await_address(process))
        self._write(record)
        return record

    @override
    def stop(self) -> None:
        """Ends the head and every process of its session, and removes its files.

        The record is kept if a process does not end.
        """
        record = self._read()
        end_processes(lambda: self._members(record), what="the embedded engine")
        if self._process is not None:  # this process's child, which has to be reaped
            self._process.wait()
            self._process = None
        if record is not None and Path(record.folder).name.startswith(FOLDER_PREFIX):
            shutil.rmtree(record.folder, ignore_errors=True)
        self._record_path.unlink(missing_ok=True)

    def _read(self) -> HeadRecord | None:
        try:
            document = json.loads(self._record_path.read_text())
            process = None if document["process"] is None else ProcessIdentity.from_json(document["process"])
            return HeadRecord(process=process, address=str(document["address"]), folder=str(document["folder"]))
        except (FileNotFoundError, ValueError, KeyError, TypeError, CorruptDataError):
            return None

    def _members(self, record: HeadRecord | None) -> list[ProcessIdentity]:
        return node_processes(
            None if record is None else record.process,
            folder=None if record is None else record.folder,
            variable=ENGINE_VARIABLE,
            mark=self._mark,
        )

    def _spawn(self, folder: str) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, every Ray process would compile all of Ray again
        env["RAY_preload_python_modules"] = ACTORS_MODULE
        env.update(self._options.environment)
        env.update(self.environment())
        env[ENGINE_VARIABLE] = self._mark
        command = [
            # -P: do not import from the working folder.
            *(sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            f"--node-ip-address={self._options.address}",
            f"--port={self._options.port}",
            # Lockstep uses none of these, and each would be one more process.
            *("--include-dashboard=false", "--include-log-monitor=false", "--no-monitor"),
            "--disable-usage-stats",
            f"--temp-dir={folder}/r",  # Ray opens it to all users; its parent stays private
            f"--resources={json.dumps({REPLICA_RESOURCE: self._options.num_replicas})}",
            f"--system-config={json.dumps(SYSTEM_CONFIG)}",
        ]
        with self._log_path.open("wb") as log:
            return subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _await_address(self, process: subprocess.Popen[bytes]) -> str:
        deadline = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < deadline:
            text = self._log_path.read_text(errors="replace")
            address = re.search(r"--address='([^']+)'", text)
            if "Ray runtime started" in text and address:
                return address.group(1)
            if process.poll() is not None:
                last = (text.strip().splitlines() or ["(no output)"])[-1]
                raise EngineError(
                    f"the embedded engine ended with exit code {process.returncode}: {last}",
                    action=f"read {self._log_path}",
                )
            time.sleep(0.05)
        self.stop()
        raise EngineError(
            f"the embedded engine did not start within {START_TIMEOUT_S:.0f} s", action=f"read {self._log_path}"
        )

    def _write(self, record: HeadRecord) -> None:
        partial = self._record_path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(record)))
        partial.replace(self._record_path)
