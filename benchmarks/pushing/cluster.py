"""One run: servers, workers and a coordinator on loopback, and what they used while the clock ran."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from pushing.measure import STARTED, STOPPED

TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
END_S: Final = 20.0
"""How long processes have that end by themselves once the coordinator has."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What came of one.

    Attributes:
        wall_s: how long the timed steps took, until the last of them was joined.
        processor_s: of all processes of a role meanwhile, by role.
        told: what the coordinator said at the end.
        log: what the others said, and all errors.
    """

    wall_s: float
    processor_s: dict[str, float]
    told: dict[str, Any]
    log: str = ""


def run(command: Sequence[str], *, num_workers: int, environment: Mapping[str, str], ends: bool) -> Run:
    """Runs a command in all roles, by TF_CONFIG; the chief's output is read.

    Args:
        command: the same for all.
        num_workers: how many there are, beside one server and the chief.
        environment: what is added to this process's own.
        ends: whether all roles end by themselves; else they are killed once the chief has said what came of it.

    Raises:
        RuntimeError: the chief ended before it had said what came of it.
    """
    ports = _free_ports(num_workers + 2)
    addresses = [f"127.0.0.1:{port}" for port in ports]
    cluster = {"chief": addresses[:1], "ps": addresses[1:2], "worker": addresses[2:]}
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        processes: dict[str, list[subprocess.Popen[str]]] = {}
        for role in ("ps", "worker", "chief"):
            for index in range(len(cluster[role])):
                config = json.dumps({"cluster": cluster, "task": {"type": role, "index": index}})
                is_chief = role == "chief"
                process = subprocess.Popen(
                    command,
                    env={**os.environ, **environment, "TF_CONFIG": config},
                    stdin=subprocess.PIPE if is_chief else subprocess.DEVNULL,
                    stdout=subprocess.PIPE if is_chief else log,
                    stderr=log,
                    text=True,
                )
                stack.callback(_end, process)
                processes.setdefault(role, []).append(process)
        try:
            found = _follow(processes)
            if ends:
                for process in (one for members in processes.values() for one in members):
                    process.wait(END_S)
            log.seek(0)
            return replace(found, log=log.read())
        except RuntimeError as error:
            log.seek(0)
            raise RuntimeError(f"{' '.join(command)}: {error}\n{log.read()[-6000:]}") from None


def _follow(processes: Mapping[str, Sequence[subprocess.Popen[str]]]) -> Run:
    (chief,) = processes["chief"]
    assert chief.stdin is not None
    assert chief.stdout is not None
    started_s, wall_s, last = 0.0, 0.0, ""
    before: dict[str, float] = {}
    used: dict[str, float] = {}
    for line in chief.stdout:
        now_s = time.perf_counter()
        last = line.strip()
        if last == STARTED:
            before = _processor_s(processes)
            started_s = time.perf_counter()
        elif last == STOPPED:
            wall_s = now_s - started_s
            used = {role: spent - before[role] for role, spent in _processor_s(processes).items()}
        if last in (STARTED, STOPPED):
            chief.stdin.write("\n")
            chief.stdin.flush()
        if last.startswith("{"):
            return Run(wall_s=wall_s, processor_s=used, told=json.loads(last))
    raise RuntimeError(f"ended with {chief.wait()} after it had said {last!r}")


def _processor_s(processes: Mapping[str, Sequence[subprocess.Popen[str]]]) -> dict[str, float]:
    def of(process: subprocess.Popen[str]) -> float:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND

    return {role: sum(map(of, members)) for role, members in processes.items()}


def _free_ports(count: int) -> list[int]:
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]


def _end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            stream.close()
