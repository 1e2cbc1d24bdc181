"""The embedded Ray head: a process tree in a session of its own, started, found again and ended by its recorded pid.

It is never ended with ``ray stop``, which ends every Ray on the machine, and never found by Ray's own session files,
which may name a dead cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, final

import psutil

from lockstep.errors import EngineError
from lockstep.home import Home

START_TIMEOUT_S: Final = 90.0
STOP_TIMEOUT_S: Final = 10.0
FOLDER_PREFIX: Final = "lockstep-ray-"
REPLICA_RESOURCE: Final = "replica"
NUM_REPLICAS_MAX: Final = 10_000

# Another loopback address than 127.0.0.1, which Ray would replace by the machine's outer address: a laptop that changes
# its network keeps its jobs. Where 127/8 is not all loopback (macOS), Ray keeps 127.0.0.1.
NODE_ADDRESS: Final = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"


@dataclass(frozen=True, kw_only=True)
class HeadRecord:
    """What is written down of a running head.

    Attributes:
        pid: of the process that started all others; also the id of their session.
        create_time_s: when that process was made: with the pid it names one process for ever.
        address: "host:port" of Ray's control store.
        folder: Ray's own files; short, for the sockets in it.
    """

    pid: int
    create_time_s: float
    address: str
    folder: str


@final
class EmbeddedHead:
    """Starts, finds and ends the embedded Ray head of one home."""

    def __init__(self, home: Home) -> None:
        self._folder = home.engine
        self._record_path = home.engine / "head.json"
        self._log_path = home.engine / "head.log"
        self._token_path = home.engine / "ray-token"
        self._process: subprocess.Popen[bytes] | None = None

    def environment(self) -> dict[str, str]:
        """Returns the variables that a process needs to talk to this head, making the token if there is none.

        The token is the home's for good: a process that has read it could not learn of another.
        """
        if not self._token_path.exists():
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(self._token_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
                with os.fdopen(descriptor, "w") as file:
                    file.write(secrets.token_hex(32))
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(self._token_path),
            "RAY_USAGE_STATS_ENABLED": "0",
        }

    def find(self) -> HeadRecord | None:
        """Returns the running head of this home, None if there is none."""
        record = self._read()
        return record if record is not None and record.address and _is_alive(record) else None

    def start(self) -> HeadRecord:
        """Returns the running head, starting it if there is none. Blocks until it answers.

        Raises:
            EngineError: it did not come up.
        """
        record = self.find()
        if record is not None:
            return record
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.stop()  # what a head that died left running
        # Ray's sockets lie in this folder, and a socket's path may have at most 107 bytes: a home's may have more.
        folder = tempfile.mkdtemp(prefix=FOLDER_PREFIX)
        process = self._process = self._spawn(folder)
        with contextlib.suppress(psutil.Error):
            record = HeadRecord(
                pid=process.pid,
                create_time_s=psutil.Process(process.pid).create_time(),
                address="",
                folder=folder,
            )
            self._write(record)
            address = self._await_address(process)
            record = HeadRecord(**{**asdict(record), "address": address})
            self._write(record)
            return record
        raise EngineError("the embedded engine ended at once", action=f"read {self._log_path}")

    def stop(self) -> None:
        """Ends the head and every process of its session, and removes its files. Idempotent; bounded."""
        record = self._read()
        if record is None:
            return
        # Not SIGTERM: Ray would take seconds to drain what nobody keeps. Runners see their launchers go, and end.
        members = _session_members(record)
        for process in members:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(members, timeout=STOP_TIMEOUT_S)
        if self._process is not None:  # started by this very process, which has to ask for its exit code
            self._process.wait(STOP_TIMEOUT_S)
            self._process = None
        if Path(record.folder).name.startswith(FOLDER_PREFIX):
            shutil.rmtree(record.folder, ignore_errors=True)
        self._record_path.unlink(missing_ok=True)

    def _read(self) -> HeadRecord | None:
        try:
            return HeadRecord(**json.loads(self._record_path.read_text()))
        except (FileNotFoundError, json.JSONDecodeError, TypeError):
            return None

    def _spawn(self, folder: str) -> subprocess.Popen[bytes]:
        env = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        env.pop("PYTHONDONTWRITEBYTECODE", None)  # with it every Ray process compiles all of Ray anew
        env.update(self.environment())
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block"),
            f"--node-ip-address={NODE_ADDRESS}",
            "--port=0",
            "--include-dashboard=false",
            "--disable-usage-stats",
            f"--temp-dir={folder}",
            f"--resources={json.dumps({REPLICA_RESOURCE: NUM_REPLICAS_MAX})}",
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
            f"the embedded engine did not come up within {START_TIMEOUT_S:.0f} s", action=f"read {self._log_path}"
        )

    def _write(self, record: HeadRecord) -> None:
        partial = self._record_path.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(record)))
        partial.replace(self._record_path)


def _is_alive(record: HeadRecord) -> bool:
    with contextlib.suppress(psutil.Error):
        process = psutil.Process(record.pid)
        return abs(process.create_time() - record.create_time_s) < 1.0 and process.status() != psutil.STATUS_ZOMBIE
    return False


def _session_members(record: HeadRecord) -> list[psutil.Process]:
    """Returns the living processes of a head's session; none if its number has gone to another session since."""
    if psutil.pid_exists(record.pid) and not _is_alive(record):
        with contextlib.suppress(psutil.Error):
            if psutil.Process(record.pid).status() != psutil.STATUS_ZOMBIE:
                return []
    members: list[psutil.Process] = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, ProcessLookupError, PermissionError):
            if os.getsid(process.pid) == record.pid and process.status() != psutil.STATUS_ZOMBIE:
                members.append(process)
    return members
