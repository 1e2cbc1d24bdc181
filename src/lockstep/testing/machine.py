"""A machine for end-to-end tests: its own home, and the real command line on it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, final

import psutil

from lockstep.client import Client
from lockstep.home import Home
from lockstep.processes import ProcessIdentity
from lockstep.service.process.keeper import end_keeper

TIMEOUT_S: Final = 60.0
COMMAND_TIMEOUT_S: Final = 150.0
"""The timeout of a command. It is longer than `lockstep up` waits, so that `lockstep up` can report a failed start."""
ENTRY: Final = re.compile(r"\d\d:\d\d:\d\d \S+ (?:[A-Z]{9,}|[A-Z][A-Z ]{7}) ")
PROGRAM: Final = """
import pathlib, sys, time
for number in range(int(sys.argv[1])):
    print("line", number, flush=True)
    time.sleep(float(sys.argv[2]))
print("end", flush=True)
"""


@final
class Machine:
    """A home, and the command line on it.

    Args:
        folder: an empty folder for both.
    """

    def __init__(self, folder: Path) -> None:
        self.home = Home(path=folder / "home")
        self.code = folder / "program"
        self.code.mkdir(parents=True)
        (self.code / "count.py").write_text(PROGRAM)
        self.env = {**os.environ, "LOCKSTEP_HOME": str(self.home.path)}

    def start(self, *arguments: str, cwd: Path | None = None) -> subprocess.Popen[str]:
        """Starts a command, and returns its process."""
        return subprocess.Popen(
            [sys.executable, "-m", "lockstep.cli.main", *arguments],
            cwd=cwd,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, code: int = 0, cwd: Path | None = None) -> str:
        """Runs a command to its end, and returns its output; its error output if the expected exit code is not 0."""
        process = self.start(*arguments, cwd=cwd)
        try:
            out, err = process.communicate(timeout=COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise
        assert process.returncode == code, f"{arguments}: {process.returncode}\n{out}\n{err}"
        assert "Traceback" not in err
        return out if code == 0 else err

    def submit(self, job: str, *, lines: int, pause_s: float) -> None:
        """Submits a job that prints numbered lines."""
        self.run("submit", job, *self.package(), "--async", "--", str(lines), str(pause_s))

    def package(self) -> tuple[str, ...]:
        """Returns the flags that select the counting program."""
        return ("--package-path", str(self.code), "--module-name", "count")

    def client(self) -> Client:
        """Returns a client of the running service."""
        return Client.from_home(self.home)

    def wait(self, job: str, condition: Callable[[dict[str, Any]], bool], *, timeout_s: float = TIMEOUT_S) -> Any:
        """Waits until a job meets a condition, and returns the job."""
        deadline = time.monotonic() + timeout_s
        with self.client() as client:
            while not condition(found := client.job(job)):
                if time.monotonic() > deadline:
                    raise AssertionError(f"job {job} did not get there: {json.dumps(found, indent=1)}")
                time.sleep(0.05)
        return found

    def service_pid(self) -> int:
        """Returns the service's process id."""
        return json.loads(self.home.address.read_text())["process"]["pid"]

    def kill_service(self) -> None:
        """Kills the service, after ending the keeper, which would restart it."""
        end_keeper(self.home)
        service = ProcessIdentity.from_json(json.loads(self.home.address.read_text())["process"])
        service.send(signal.SIGKILL)
        assert service.wait(timeout_s=TIMEOUT_S)

    def log_texts(self, job: str) -> list[str]:
        """Returns the texts of a job's log, as `logs` prints them, without time, replica and severity."""
        return [ENTRY.sub("", line) for line in self.run("logs", job).splitlines()]

    def processes(self) -> list[psutil.Process]:
        """Returns the running processes that belong to this home, by environment, command line or working folder."""
        found = []
        for process in psutil.process_iter():
            try:
                texts = [*process.cmdline(), *process.environ().values(), process.cwd()]
                mine = any(str(self.home.path) in text for text in texts)
                if mine and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid():
                    found.append(process)
            except (psutil.Error, OSError):
                continue
        return found
