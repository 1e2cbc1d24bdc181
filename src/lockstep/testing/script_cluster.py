"""Runs a script in every role of a cluster with parameter servers, as processes that tests kill, stop and restart."""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self, final

from lockstep.parameter_server.local_processes import hold_cluster, make_program
from lockstep.processes import POLL_S, ProcessIdentity
from lockstep.processes.guarded import GuardedProcesses
from lockstep.topology import CLUSTER_TOKEN, Topology

TIMEOUT_S: Final = 90.0


@final
class ScriptCluster:
    """A cluster of local processes. Each process writes its output to a file of its own, which tests can read.

    `lockstep.parameter_server.LocalProcesses` is used within a script; this class also starts the chief. As a context
    manager, it ends all processes and their child processes. They also end with the test's process.

    Args:
        arguments: the arguments of Python, the same for all processes: the path of a script, then the script's
            arguments.
        folder: the folder for the output files. It is also the working folder of the processes.
        num_workers: the number of workers, without the chief.
        num_servers: the number of parameter servers.
        evaluator: whether there is an evaluator.
        env: environment variables for all processes, in addition to the test's own.
        max_restarts: the maximum number of automatic restarts of processes that died, over all processes.
    """

    def __init__(
        self,
        arguments: Sequence[str | Path],
        *,
        folder: Path,
        num_workers: int = 2,
        num_servers: int = 1,
        evaluator: bool = False,
        env: Mapping[str, str] | None = None,
        max_restarts: int = 0,
    ) -> None:
        self._folder = folder
        cluster, self._held = hold_cluster(num_workers=num_workers, num_servers=num_servers)
        self.topology = Topology(cluster=cluster)
        variables = {CLUSTER_TOKEN: secrets.token_hex(), **(env or {})}
        counts = {"ps": num_servers, "worker": num_workers, "evaluator": int(evaluator), "chief": 1}
        programs = [
            make_program(
                self.topology,
                role,
                index,
                command=(sys.executable, *map(str, arguments)),
                variables=variables,
                output=self._output(role, index),
            )
            for role, count in counts.items()
            for index in range(count)
        ]
        self._guarded = GuardedProcesses(programs, cwd=folder, max_restarts=max_restarts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def processes(self) -> Mapping[str, ProcessIdentity]:
        """The running processes, by role and index, such as "worker 0"."""
        return self._guarded.processes

    @property
    def codes(self) -> Mapping[str, int]:
        """The exit codes of the processes that have ended for good, by role and index, such as "worker 0".

        If a signal ended a process, its code is the negative number of the signal.
        """
        return self._guarded.codes

    def text(self, role: str, index: int = 0) -> str:
        """Returns the output of a process so far, over all of its starts."""
        return self._output(role, index).read_text(errors="replace")

    def wait_for(self, text: str, role: str = "chief", index: int = 0, *, timeout_s: float = TIMEOUT_S) -> None:
        """Waits until a process has printed a text. Fails if the process ends without printing it."""
        name = f"{role} {index}"
        self.wait_until(
            lambda: text in self.text(role, index) or name in self.codes,
            what=f"{text!r} of {name}",
            timeout_s=timeout_s,
        )
        assert text in self.text(role, index), f"{name} ended with {self.codes[name]} before {text!r}:\n{self._texts()}"

    def wait_until(
        self, condition: Callable[[], object], *, what: str = "the condition", timeout_s: float = TIMEOUT_S
    ) -> None:
        """Waits until a condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"{what} did not come within {timeout_s} s:\n{self._texts()}"
            time.sleep(POLL_S)

    def send(self, number: signal.Signals, role: str, index: int = 0) -> None:
        """Sends a signal to a process, such as SIGSTOP or SIGCONT."""
        self.processes[f"{role} {index}"].send(number)

    def kill(self, role: str, index: int = 0) -> None:
        """Kills a process, and waits until it has ended for good, or was restarted automatically."""
        name = f"{role} {index}"
        killed = self.processes[name]
        killed.send(signal.SIGKILL)
        self.wait_until(
            lambda: name in self.codes or self.processes.get(name, killed) != killed, what=f"the end of {name}"
        )

    def restart(self, role: str, index: int = 0) -> None:
        """Starts a process again that has ended. Its output is appended to its file."""
        self._guarded.start(f"{role} {index}")

    def end(self, role: str = "chief", index: int = 0, *, timeout_s: float = TIMEOUT_S) -> int:
        """Waits until a process has ended for good. Returns its exit code, or the negative number of its signal."""
        name = f"{role} {index}"
        self.wait_until(lambda: name in self.codes, what=f"the end of {name}", timeout_s=timeout_s)
        return self.codes[name]

    def close(self) -> None:
        """Ends all running processes. Idempotent."""
        self._guarded.close()
        for held in self._held:
            held.close()

    def _output(self, role: str, index: int) -> Path:
        return self._folder / f"{role}-{index}.log"

    def _texts(self) -> str:
        texts: list[str] = []
        for name in self._guarded.num_starts:
            role, _, index = name.partition(" ")
            with contextlib.suppress(FileNotFoundError):
                texts.append(f"--- {name}, {self.codes.get(name, 'running')}\n{self.text(role, int(index))}")
        return "\n".join(texts)
