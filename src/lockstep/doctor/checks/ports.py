"""The ports and addresses that the service, the engine and replicas need."""

from __future__ import annotations

import json
import socket
import sys
from typing import Final

import psutil

from lockstep.client import find_service
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings
from lockstep.processes.ports import FIRST_PORT, LAST_PORT, NUM_TRIES

ENGINE_ADDRESS: Final = "127.0.0.2"
"""The address of the embedded engine on Linux."""


def check_ports(surroundings: Surroundings) -> Result:
    """Looks at the service's last port, the engine's address, and the ports of replicas."""
    findings: list[Finding] = []
    port = _last_port(surroundings)
    if port and not surroundings.of_service and find_service(surroundings.home) is None:
        user = _listener(port)
        if user is not None:
            findings.append(
                warning(
                    "the port that the service had last is in use",
                    received=f"port {port}, by {user}",
                    needed="that port, if clients know it; otherwise `lockstep up` takes another one",
                    remedy="lockstep up --port 0",
                )
            )
    if sys.platform == "linux" and (problem := _bind_problem(ENGINE_ADDRESS)):
        findings.append(
            error(
                "the engine's address cannot be used",
                received=f"{ENGINE_ADDRESS}: {problem}",
                needed="all of 127.0.0.0/8 on the loopback interface",
                remedy="sudo ip address replace 127.0.0.1/8 dev lo && sudo ip link set lo up",
            )
        )
    used = sum(FIRST_PORT <= port <= LAST_PORT for port in _listeners())
    findings += judge_range(surroundings.read("proc/sys/net/ipv4/ip_local_port_range"), used=used)
    return Result(findings=tuple(findings), detail=f"{used} of {LAST_PORT - FIRST_PORT + 1} ports in use")


def judge_range(text: str, *, used: int) -> list[Finding]:
    """Returns the faults of the ports that replicas get.

    Args:
        text: the kernel's range for ports that it assigns by itself, such as "32768 60999"; empty if it has none.
        used: how many ports of replicas are in use.
    """
    found: list[Finding] = []
    fields = text.split()
    if len(fields) == 2 and fields[0].isdecimal() and int(fields[0]) < FIRST_PORT + NUM_TRIES:
        found.append(
            warning(
                "the kernel assigns the ports of replicas to other programs",
                received=f"net.ipv4.ip_local_port_range = {fields[0]} {fields[1]}",
                needed=f"a range that begins above {FIRST_PORT + NUM_TRIES}",
                remedy='sudo sysctl -w net.ipv4.ip_local_port_range="32768 60999"',
            )
        )
    if used > (LAST_PORT - FIRST_PORT + 1) * 0.9:
        found.append(
            error(
                "few ports are left for replicas",
                received=f"{used} ports between {FIRST_PORT} and {LAST_PORT} are in use",
                needed="some thousand free ones",
                remedy="ss -ltnp | sort -k4",
            )
        )
    return found


def check_names(surroundings: Surroundings) -> Result:
    """Resolves the machine's own name, by which processes of a job on several machines meet."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError as problem:
        return Result(
            findings=(
                warning(
                    "the machine's own name has no address",
                    received=f"{name}: {problem.strerror or problem}",
                    needed="a line in /etc/hosts: programs of several processes look it up",
                    remedy=f'echo "127.0.1.1 {name}" | sudo tee -a /etc/hosts',
                ),
            )
        )
    return Result(detail=f"{name} is {address}")


def _last_port(surroundings: Surroundings) -> int:
    try:
        return int(json.loads((surroundings.home.path / "port.json").read_text()))
    except (OSError, ValueError, TypeError):
        return 0


def _listeners() -> dict[int, int | None]:
    """Returns the TCP ports of this machine that somebody listens on, with the process id; None if it is hidden."""
    try:
        return {
            connection.laddr.port: connection.pid
            for connection in psutil.net_connections("tcp")
            if connection.laddr and connection.status == psutil.CONN_LISTEN
        }
    except psutil.AccessDenied:  # macOS tells only root
        return {}


def _listener(port: int) -> str | None:
    """Returns who listens on a port of this machine: "python3, pid 7"; None if nobody does."""
    listeners = _listeners()
    if port not in listeners:
        return None
    pid = listeners[port]
    if pid is None:
        return "a process of another user"
    try:
        return f"{psutil.Process(pid).name()}, pid {pid}"
    except psutil.Error:
        return f"pid {pid}"


def _bind_problem(host: str) -> str:
    with socket.socket() as probe:
        try:
            probe.bind((host, 0))
        except OSError as problem:
            return problem.strerror or type(problem).__name__
    return ""
