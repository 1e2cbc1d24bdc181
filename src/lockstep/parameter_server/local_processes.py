"""A cluster on this machine: the script that creates it is the chief, and is started again in every other role."""

from __future__ import annotations

import atexit
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, final

from lockstep.errors import ConfigError, InvalidInputError, WrongStateError
from lockstep.processes import ProcessIdentity
from lockstep.processes.guarded import GuardedProcesses
from lockstep.processes.guardian import GuardedProgram
from lockstep.processes.ports import ReservedAddress, reserve_address
from lockstep.strategies.peers.resolvers import AbstractClusterResolver
from lockstep.topology import Topology

LOGGER: Final = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
DEFAULT_MAX_RESTARTS: Final = 10
LEAVE_S: Final = 30.0
"""How long the other processes may take to end by themselves when the chief ends, in seconds: an evaluator may still
have a last checkpoint to evaluate.
"""
FAILED_LEAVE_S: Final = 5.0
"""How long they may take if an error ended the chief, in seconds. A longer wait is logged."""

_VALUED_OPTIONS: Final = "XW"
_starting: Final = threading.Lock()
_started: LocalProcesses | None = None


@final
class LocalProcesses(AbstractClusterResolver):
    """A cluster of processes on this machine, as a `cluster_resolver` that needs no ``TF_CONFIG``.

    The process that creates the strategy is the chief. It starts its own script again for each other process, with the
    same interpreter, arguments, working folder and environment. It forwards their output, with a prefix such as "worker
    0: " on each line. A process that dies is started again. No process outlives the chief.

    If the environment already names a cluster, as it does in these processes and in a job, that cluster is used and
    nothing is started. A process can have only one such cluster, because all processes of the cluster run its script.

    Args:
        num_workers: the number of workers, not counting the chief.
        num_servers: the number of parameter servers.
        evaluator: whether to start a process that evaluates the checkpoints.
        max_restarts: how many times, over all processes, a process that was killed or ended with a code other than 0 is
            started again.

    Raises:
        InvalidInputError: `num_workers` or `num_servers` is below 1, or `max_restarts` is below 0.
    """

    def __init__(
        self,
        num_workers: int = 2,
        num_servers: int = 1,
        *,
        evaluator: bool = False,
        max_restarts: int = DEFAULT_MAX_RESTARTS,
    ) -> None:
        for name, number in (("num_workers", num_workers), ("num_servers", num_servers)):
            if number < 1:
                raise InvalidInputError(name, received=number, allowed="1 or more")
        if max_restarts < 0:
            raise InvalidInputError("max_restarts", received=max_restarts, allowed="0 or more")
        self._counts = {"worker": num_workers, "ps": num_servers, "evaluator": int(evaluator)}
        self._max_restarts = max_restarts
        self._lock = threading.Lock()
        self._topology: Topology | None = None
        self._held: list[ReservedAddress] = []
        self._guarded: GuardedProcesses | None = None
        self._owner = os.getpid()
        self._dismissed: Callable[[], Collection[str] | None] = lambda: None

    def resolve(self) -> Topology:
        """Returns the cluster. The first call in the chief starts it.

        Raises:
            ConfigError: the program cannot be started again: it is a notebook, an interactive prompt, ``python -c`` or
                a pipe.
            EngineError: there are not enough free ports, or a process cannot be started.
            WrongStateError: this process has already started other local processes.
        """
        with self._lock:
            if self._topology is None:
                found = Topology.from_env()
                is_named = found.cluster or found.task.role == "evaluator"
                self._topology = found if is_named else self._start(found)
            return self._topology

    @property
    def topology(self) -> Topology:
        """The cluster, as `resolve` returns it."""
        return self.resolve()

    @property
    def processes(self) -> Mapping[str, ProcessIdentity]:
        """The other processes that are running, by name: "worker 0", "ps 0", "evaluator 0". Empty outside the chief."""
        return {} if self._guarded is None else self._guarded.processes

    def kill(self, role: str, index: int = 0, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to one of the other processes, to test how the training reacts.

        Args:
            role: "worker", "ps" or "evaluator".
            index: the index of the process within its role.
            number: the signal.

        Raises:
            InvalidInputError: the process is not running.
        """
        processes = self.processes
        name = f"{role} {index}"
        if name not in processes:
            raise InvalidInputError("a process to be signalled", received=name, allowed=sorted(processes) or "none")
        processes[name].send(number)

    def wait_for_dismissed(self, dismissed: Callable[[], Collection[str] | None]) -> None:
        """Makes `close` skip workers that were not told that the training is over.

        They would keep looking for the chief.

        Args:
            dismissed: a function that returns the names of the workers that were told; None if no training has begun.
        """
        self._dismissed = dismissed

    def close(self) -> None:
        """Waits briefly for the other processes to end, then ends them. Called when the chief exits. Idempotent."""
        if self._guarded is not None and os.getpid() == self._owner:  # not in a forked child of the chief
            has_failed = getattr(sys, "last_value", None) is not None  # an uncaught exception
            dismissed, names = self._dismissed(), set(self._guarded.num_starts)
            if dismissed is not None:
                names -= {name for name in names if name.startswith("worker ") and name not in dismissed}
                if late := sorted(self.processes.keys() - names):
                    LOGGER.warning("the training is over; stopped, since it had not joined: %s", ", ".join(late))
            if not self._guarded.wait(names, timeout_s=FAILED_LEAVE_S) and not has_failed:
                awaited = ", ".join(name for name in self.processes if name in names)
                LOGGER.warning("waiting for the end of %s: %.0f s at the most", awaited, LEAVE_S)
                self._guarded.wait(names, timeout_s=LEAVE_S - FAILED_LEAVE_S)
            self._guarded.close()
            for held in self._held:
                held.close()

    def _start(self, alone: Topology) -> Topology:
        global _started
        main = getattr(sys.modules.get("__main__"), "__file__", None)
        command = restart_command(sys.orig_argv, main=main, executable=sys.executable)
        with _starting:
            if _started is not None:
                raise WrongStateError(
                    "this process has started local processes already",
                    action="use the same LocalProcesses again: all of them run this script",
                )
            cluster, self._held = hold_cluster(num_workers=self._counts["worker"], num_servers=self._counts["ps"])
            topology = replace(alone, cluster=cluster, task=replace(alone.task, role="chief", index=0))
            programs = [
                make_program(topology, role, index, command=command)
                for role in ("ps", "worker", "evaluator")
                for index in range(self._counts[role])
            ]
            self._owner = os.getpid()
            self._guarded = GuardedProcesses(programs, cwd=Path.cwd(), max_restarts=self._max_restarts)
            _started = self
        atexit.register(self.close)
        return topology


def hold_cluster(*, num_workers: int, num_servers: int) -> tuple[dict[str, tuple[str, ...]], list[ReservedAddress]]:
    """Reserves free ports for a cluster with one chief; returns the addresses by role, and what keeps them reserved.

    Args:
        num_workers: the number of workers, not counting the chief.
        num_servers: the number of parameter servers.

    Raises:
        EngineError: there are not enough free ports.
    """
    held = [reserve_address(HOST) for _ in range(1 + num_workers + num_servers)]
    chief, *others = (one.address for one in held)
    return {"chief": (chief,), "worker": tuple(others[:num_workers]), "ps": tuple(others[num_workers:])}, held


def make_program(
    topology: Topology,
    role: str,
    index: int,
    *,
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> GuardedProgram:
    """Returns the program of one process of a cluster.

    Args:
        topology: the cluster.
        role: the role of the process.
        index: the index of the process within its role.
        command: the program and its arguments.
        variables: more environment variables, in addition to those that state the role.
        output: the file for the output; None to forward the output with the name of the process before each line.
    """
    own = replace(topology, task=replace(topology.task, role=role, index=index)).to_env()
    own["PYTHONUNBUFFERED"] = "1"  # so that each line is forwarded when it is printed
    return GuardedProgram(
        name=f"{role} {index}",
        command=tuple(command),
        variables={**own, **(variables or {})},
        output=None if output is None else str(output),
    )


def restart_command(words: Sequence[str], *, main: str | None, executable: str) -> tuple[str, ...]:
    """Returns the command that runs a program again.

    Args:
        words: the interpreter's own command line, as in `sys.orig_argv`.
        main: the path of the program's file; None if it has none.
        executable: the path of the interpreter.

    Raises:
        ConfigError: the program cannot be run again.
    """
    index = _program_index(words)
    if index is None or main is None:
        raise ConfigError(
            "local processes run the chief's script again, but this program is not a script file",
            received="a notebook, a prompt, python -c or a pipe",
            allowed="python FILE.py, python -m MODULE",
            action="save it as a file",
        )
    program = words[index]
    if not program.startswith("-") and Path(program).name == Path(main).name:
        program = main  # the absolute path: the script may have changed its working folder
    return (executable, *words[1:index], program, *words[index + 1 :])


def _program_index(words: Sequence[str]) -> int | None:
    """Returns the index of the program in a Python command line: the script, or "-m". None if there is neither."""
    index = 1
    while index < len(words) and words[index].startswith("-"):
        word = words[index]
        if word == "-":
            return None
        has_value = word == "--check-hash-based-pycs"
        for end, letter in enumerate(word[1:], start=2) if not word.startswith("--") else ():
            if letter in "cm":
                return index if letter == "m" else None
            if letter in _VALUED_OPTIONS:
                has_value = end == len(word)
                break
        index += 1 + has_value
    return index if index < len(words) else None
