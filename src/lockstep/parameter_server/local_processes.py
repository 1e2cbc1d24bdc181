"""A cluster on this machine: the script that makes it is the chief, and is started again in every other role."""

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
from lockstep.processes.ports import HeldAddress, hold_address
from lockstep.strategies.peers.resolvers import AbstractClusterResolver
from lockstep.topology import Topology

LOGGER: Final = logging.getLogger(__name__)

HOST: Final = "127.0.0.1"
DEFAULT_MAX_RESTARTS: Final = 10
LEAVE_S: Final = 30.0
"""How long the others have to end by themselves when the chief ends: an evaluator has a last checkpoint to look at."""
FAILED_LEAVE_S: Final = 5.0
"""How long they have when an error ends it. A wait that is longer is said."""

_VALUED_OPTIONS: Final = "XW"
_starting: Final = threading.Lock()
_started: LocalProcesses | None = None


@final
class LocalProcesses(AbstractClusterResolver):
    """Workers and parameter servers as processes of this machine: a `cluster_resolver` that needs no ``TF_CONFIG``.

    The process that makes the strategy is the chief. It starts the very script that it runs, with the same interpreter,
    arguments, working folder and environment, once for each of the others, and passes on what they print, each line
    with "worker 0: " before it. What dies is started again; nothing of it outlives the chief. Where the environment
    names a cluster, as in those processes or in a job, it is taken from there, and nothing is started.

    A process has one such cluster at the most: its script is run by all of them.

    Args:
        num_workers: how many workers there are beside the chief.
        num_servers: how many parameter servers.
        evaluator: whether there is a process that watches the checkpoints.
        max_restarts: how often one that was killed, or ended with a code other than 0, is started again, in all.

    Raises:
        InvalidInputError: no worker or no server is asked for.
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
        self._held: list[HeldAddress] = []
        self._guarded: GuardedProcesses | None = None
        self._owner = os.getpid()
        self._dismissed: Callable[[], Collection[str] | None] = lambda: None

    def resolve(self) -> Topology:
        """Returns the cluster; the first time, in the chief, starts it.

        Raises:
            ConfigError: the program cannot be started again: it is a notebook, a prompt, ``python -c`` or a pipe.
            EngineError: no ports are free, or no process can be started.
            WrongStateError: this process has started other local processes.
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
        """The others that run now, by "worker 0", "ps 0", "evaluator 0"; none but in the chief."""
        return {} if self._guarded is None else self._guarded.processes

    def kill(self, role: str, index: int = 0, number: signal.Signals = signal.SIGKILL) -> None:
        """Sends a signal to one of the others, as a test of what happens then.

        Args:
            role: "worker", "ps" or "evaluator".
            index: which of them.
            number: the signal.

        Raises:
            InvalidInputError: it does not run.
        """
        processes = self.processes
        name = f"{role} {index}"
        if name not in processes:
            raise InvalidInputError("a process to be signalled", received=name, allowed=sorted(processes) or "none")
        processes[name].send(number)

    def wait_for_dismissed(self, dismissed: Callable[[], Collection[str] | None]) -> None:
        """Has `close` wait for no worker that was not told that the training is over: it would look for the chief.

        Args:
            dismissed: returns the names of the workers that were told; None where no training has begun.
        """
        self._dismissed = dismissed

    def close(self) -> None:
        """Waits a moment for the others to end by themselves, then ends them. The chief's end does so. Idempotent."""
        if self._guarded is not None and os.getpid() == self._owner:  # not in a process that the chief has forked
            has_failed = getattr(sys, "last_value", None) is not None  # what nobody caught, as Python ends
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
        command = command_again(sys.orig_argv, main=main, executable=sys.executable)
        with _starting:
            if _started is not None:
                raise WrongStateError(
                    "this process has started local processes already",
                    action="use the same LocalProcesses again: all of them run this script",
                )
            cluster, self._held = hold_cluster(num_workers=self._counts["worker"], num_servers=self._counts["ps"])
            topology = replace(alone, cluster=cluster, task=replace(alone.task, role="chief", index=0))
            programs = [
                program_of(topology, role, index, command=command)
                for role in ("ps", "worker", "evaluator")
                for index in range(self._counts[role])
            ]
            self._owner = os.getpid()
            self._guarded = GuardedProcesses(programs, cwd=Path.cwd(), max_restarts=self._max_restarts)
            _started = self
        atexit.register(self.close)
        return topology


def hold_cluster(*, num_workers: int, num_servers: int) -> tuple[dict[str, tuple[str, ...]], list[HeldAddress]]:
    """Returns the addresses of a cluster with one chief by role, and what keeps them for it.

    Args:
        num_workers: how many workers there are beside the chief.
        num_servers: how many parameter servers.

    Raises:
        EngineError: there are not as many free ports.
    """
    held = [hold_address(HOST) for _ in range(1 + num_workers + num_servers)]
    chief, *others = (one.address for one in held)
    return {"chief": (chief,), "worker": tuple(others[:num_workers]), "ps": tuple(others[num_workers:])}, held


def program_of(
    topology: Topology,
    role: str,
    index: int,
    *,
    command: Sequence[str],
    variables: Mapping[str, str] | None = None,
    output: Path | None = None,
) -> GuardedProgram:
    """Returns the program of one role of a cluster.

    Args:
        topology: the cluster.
        role: which role.
        index: which of the role.
        command: the program and its arguments.
        variables: of its environment, beside those that say its role.
        output: the file of its output; None for its name before each line.
    """
    own = replace(topology, task=replace(topology.task, role=role, index=index)).to_env()
    own["PYTHONUNBUFFERED"] = "1"  # a line goes on when it is printed, not when a buffer is full
    return GuardedProgram(
        name=f"{role} {index}",
        command=tuple(command),
        variables={**own, **(variables or {})},
        output=None if output is None else str(output),
    )


def command_again(words: Sequence[str], *, main: str | None, executable: str) -> tuple[str, ...]:
    """Returns the command that runs a program again.

    Args:
        words: the interpreter's own command line, as `sys.orig_argv` has it.
        main: the path of the program's file, None where it has none.
        executable: the interpreter's path.

    Raises:
        ConfigError: the program cannot be run again.
    """
    index = _place_of_program(words)
    if index is None or main is None:
        raise ConfigError(
            "local processes run the chief's script again, and this program is none",
            received="a notebook, a prompt, python -c or a pipe",
            allowed="python FILE.py, python -m MODULE",
            action="save it as a file",
        )
    program = words[index]
    if not program.startswith("-") and Path(program).name == Path(main).name:
        program = main  # whole: the script may have gone to another folder
    return (executable, *words[1:index], program, *words[index + 1 :])


def _place_of_program(words: Sequence[str]) -> int | None:
    """Returns where a command line of Python names its program: the script, or "-m"; None where it has another one."""
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
