"""The meeting of a job's processes before JAX starts: each introduces itself, and learns of the others or of a fault.

The first process, the chief, listens at the address that all processes know. The others connect to it, and send their
rank, the number of processes that they expect, and their versions. The meeting detects a port in use, a chief that
cannot be reached, a process that never arrives, two processes with one rank, different numbers of processes, and
different versions, and reports the fault by name in every process. JAX would only wait in each of these cases. The
connections stay open afterwards, and `lockstep.strategies.peers.watchdog` watches them.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.metadata
import ipaddress
import logging
import os
import platform
import secrets
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, cast, final

import psutil

from lockstep.errors import BackendError, ConfigError, LockstepError, PeerLostError, PortInUseError, UnavailableError
from lockstep.strategies.peers.wire import Connection, Message, WireError, split_address
from lockstep.topology import Topology

logger = logging.getLogger(__name__)

PROTOCOL: Final = 1
"""The version of the protocol; increased when messages change their meaning."""

PACKAGES: Final = ("lockstep-train", "jax", "jaxlib", "keras", "keras-nightly", "numpy")
"""The packages whose versions must be equal in all processes, because they determine the compiled program."""

_LINGER_S: Final = 2.0
"""How long a chief that has found a fault waits for further processes, so that they learn of it too."""

_RETRY_S: Final = 0.1
_CONNECT_TIMEOUT_S: Final = 2.0
_BANNER_TIMEOUT_S: Final = 5.0
_ERRORS: Final = {kind.__name__: kind for kind in (BackendError, ConfigError, PeerLostError)}


@final
@dataclass(frozen=True, kw_only=True)
class Introduction:
    """The message with which a process introduces itself.

    Attributes:
        rank: the process's rank, from 0.
        num_processes: the number of processes that it expects.
        role: its role and index, such as "worker 1".
        address: its own address; "" if it does not know it.
        host: the name of its machine.
        pid: its process id on that machine.
        versions: the installed versions of `PACKAGES` and of Python, by name.
    """

    rank: int
    num_processes: int
    role: str
    address: str
    host: str
    pid: int
    versions: Mapping[str, str]

    def __str__(self) -> str:
        return f"{self.role} (rank {self.rank}, {self.address}, process {self.pid} on {self.host})"


@final
@dataclass(frozen=True, kw_only=True)
class Peer:
    """A process of the job, as the others know it.

    Attributes:
        rank: the process's rank, from 0.
        role: its role and index, such as "worker 1".
        address: its address; "" if it is unknown.
    """

    rank: int
    role: str
    address: str

    def __str__(self) -> str:
        return f"{self.role} (rank {self.rank}, {self.address or 'at an unknown address'})"


@final
@dataclass(frozen=True, kw_only=True)
class Meeting:
    """The result of a meeting to which all processes have come.

    Attributes:
        rank: this process's rank.
        peers: all processes, by rank.
        timeout_s: how long a peer may be silent, in seconds. It is the chief's value, and applies to all processes.
        links: the connections, by the other side's rank. The chief is connected to all others, and each of the others
            to the chief.
        listener: the socket at which the chief listens; None in the other processes.
        chief_address: the address at which this process reached the chief; "" in the chief.
        token: the secret that a connection to JAX's coordination service must show.
    """

    rank: int
    peers: tuple[Peer, ...]
    timeout_s: float
    links: Mapping[int, Connection]
    listener: socket.socket | None
    chief_address: str
    token: str

    @property
    def own_host(self) -> str:
        """The IP address of the interface over which this process and the others reach each other."""
        return next(iter(self.links.values())).local_host


def installed_versions() -> dict[str, str]:
    """Returns the installed versions of `PACKAGES`, and Python's major and minor version."""
    versions: dict[str, str] = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {**versions, "python": ".".join(platform.python_version_tuple()[:2])}


def meet_peers(
    topology: Topology, *, wait_s: float, timeout_s: float, versions: Mapping[str, str] | None = None
) -> Meeting:
    """Meets the other processes. Blocks until all of them have arrived.

    Args:
        topology: the members of the job; two processes or more.
        wait_s: how long to wait for the others to arrive, in seconds.
        timeout_s: how long a process may be silent afterwards, in seconds. The chief's value applies to all processes.
        versions: the versions of the packages that this process runs. By default, the installed versions.

    Raises:
        PortInUseError: this process is the chief, and another program uses its port.
        PeerLostError: another process did not arrive.
        ConfigError: the processes do not agree on their number, or two of them have the same rank.
        BackendError: the processes run different versions.
        UnavailableError: something else than a Lockstep chief answers at the chief's address, or the chief cannot
            listen there.
    """
    rank = topology.process_id
    own = Introduction(
        rank=rank,
        num_processes=topology.num_processes,
        role=f"{topology.task.role} {topology.task.index}",
        address=topology.synchronous_addresses[rank],
        host=socket.gethostname(),
        pid=os.getpid(),
        versions=installed_versions() if versions is None else versions,
    )
    assert topology.coordinator_address is not None
    if rank == 0:
        return _ChiefMeeting(own, expected=topology, deadline=time.monotonic() + wait_s, timeout_s=timeout_s).run()
    return _join_chief(own, chief=topology.coordinator_address, wait_s=wait_s, timeout_s=timeout_s)


def fault_among(introductions: Sequence[Introduction]) -> LockstepError | None:
    """Finds a reason why the processes cannot train together.

    Args:
        introductions: the messages of the processes that have arrived so far, the chief's first.

    Returns:
        The first fault: different numbers of processes, a rank that is too high or that two processes have, or
        different versions. None if there is no fault.
    """
    counts = {introduction.num_processes for introduction in introductions}
    if len(counts) > 1:
        return ConfigError(
            "the processes do not agree on how many they are: "
            + ", ".join(f"{introduction.num_processes} says {introduction}" for introduction in introductions),
            action="give every process the same cluster",
        )
    by_rank: dict[int, Introduction] = {}
    for introduction in introductions:
        if not 0 <= introduction.rank < introduction.num_processes:
            return ConfigError(
                f"{introduction} is not one of {introduction.num_processes} processes", allowed="a rank below that"
            )
        first = by_rank.setdefault(introduction.rank, introduction)
        if first is not introduction:
            return ConfigError(
                f"two processes have rank {introduction.rank}: {first} and {introduction}",
                action="give each process an index of its own",
            )
    for package in dict.fromkeys(name for introduction in introductions for name in introduction.versions):
        found: dict[str, list[Introduction]] = {}
        for introduction in introductions:
            found.setdefault(introduction.versions.get(package, "none"), []).append(introduction)
        if len(found) > 1:
            described = "; ".join(f"{version} on {', '.join(map(str, have))}" for version, have in found.items())
            return BackendError(
                f"the processes run different versions of {package}: {described}", action="install the same"
            )
    return None


@final
class _ChiefMeeting:
    """The chief's side of the meeting."""

    def __init__(self, own: Introduction, *, expected: Topology, deadline: float, timeout_s: float) -> None:
        self._own = own
        self._expected = expected
        self._deadline = deadline
        self._timeout_s = timeout_s
        self._listener = _listen(expected.synchronous_addresses[0])
        self._arrived: dict[Connection, Introduction] = {}
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)

    def run(self) -> Meeting:
        num_others = self._own.num_processes - 1
        fault: LockstepError | None = None
        logger.info("waiting at %s for %d other processes", self._own.address, num_others)
        while len(self._arrived) < num_others:
            remaining_s = self._deadline - time.monotonic()
            if remaining_s <= 0:
                break
            for key, _ in self._selector.select(remaining_s):
                if key.fileobj is self._listener:
                    self._accept(remaining_s)
                else:
                    self._read(key.data)
            found = fault_among([self._own, *self._arrived.values()])
            if found is not None and fault is None:
                fault, self._deadline = found, min(self._deadline, time.monotonic() + _LINGER_S)
        if fault is None and len(self._arrived) < num_others:
            fault = self._missing()
        if fault is not None:
            self._refuse(fault)
            raise fault
        return self._welcome()

    def _accept(self, remaining_s: float) -> None:
        with contextlib.suppress(OSError):
            link = Connection(self._listener.accept()[0])
            self._selector.register(link, selectors.EVENT_READ, link)
            link.send({"kind": "lockstep", "protocol": PROTOCOL, "waits_s": max(remaining_s, _LINGER_S)})

    def _read(self, link: Connection) -> None:
        try:
            messages = link.receive()
            if messages and messages[0]["kind"] == "hello":
                self._arrived[link] = _parse_introduction(messages[0], remote_host=link.remote_host)
        except (WireError, KeyError, TypeError, ValueError) as error:
            logger.warning(
                "the client that connected from %s is not a process of this job: %s", link.remote_host, error
            )
            link.ended = True
        if link.ended:
            self._selector.unregister(link)
            self._arrived.pop(link, None)
            link.close()

    def _missing(self) -> PeerLostError:
        arrived = {introduction.rank for introduction in self._arrived.values()}
        addresses = self._expected.synchronous_addresses
        roles = roles_by_rank(self._expected)
        missing = [
            str(Peer(rank=rank, role=roles[rank], address=addresses[rank]))
            for rank in range(1, len(addresses))
            if rank not in arrived
        ]
        waited_for = f"{' and '.join(missing)} did not arrive at the meeting"
        return PeerLostError(
            f"{waited_for}: {self._own.role} waited at {self._own.address}",
            action="check that it runs and can reach this address",
        )

    def _refuse(self, fault: LockstepError) -> None:
        for link in self._arrived:
            link.send({"kind": "refused", "error": type(fault).__name__, "what": str(fault)})
        self._selector.close()
        for link in self._arrived:
            link.close()
        self._listener.close()

    def _welcome(self) -> Meeting:
        self._selector.close()
        links = {introduction.rank: link for link, introduction in self._arrived.items()}
        introductions = sorted([self._own, *self._arrived.values()], key=lambda introduction: introduction.rank)
        peers = tuple(
            Peer(rank=introduction.rank, role=introduction.role, address=introduction.address)
            for introduction in introductions
        )
        token = secrets.token_hex(16)
        welcome = {"peers": [asdict(peer) for peer in peers], "timeout_s": self._timeout_s, "token": token}
        for link in links.values():
            link.send({"kind": "welcome", **welcome})
        return Meeting(
            rank=0,
            peers=peers,
            timeout_s=self._timeout_s,
            links=links,
            listener=self._listener,
            chief_address="",
            token=token,
        )


def roles_by_rank(topology: Topology) -> list[str]:
    """Returns the role and index of each process that trains in step, by rank."""
    return [
        f"{role} {index}"
        for role in ("chief", "master", "worker")
        for index in range(len(topology.cluster.get(role, ())))
    ]


def _listen(address: str) -> socket.socket:
    """Listens at an address's own interface, or at all interfaces if none of this machine has the address."""
    host, port = split_address(address)
    interface, family = _interface_of(host)
    try:
        try:
            listener = socket.create_server((interface, port), family=family)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
            # No interface of this machine has the address that others use for it: addresses are translated (NAT).
            logger.warning("%s is not an address of this machine; listening on all interfaces", address)
            listener = socket.create_server(("", port), family=family)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _port_in_use(address, port) from None
        raise UnavailableError(f"the chief cannot listen at {address}: {error.strerror}") from None
    listener.setblocking(False)
    return listener


def _interface_of(host: str) -> tuple[str, socket.AddressFamily]:
    """Returns the IP address to listen at ("" for all addresses), and its family."""
    try:
        family, _, _, _, where = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0]
    except socket.gaierror:
        logger.warning("the chief's own name %s does not resolve here; listening on all interfaces", host)
        return "", socket.AF_INET
    found = str(where[0])
    # On Debian, a machine's own name resolves to 127.0.1.1 on that machine, but to another address on the others.
    is_hidden = ipaddress.ip_address(found).is_loopback and host not in ("localhost", found)
    return ("" if is_hidden else found), family


def _port_in_use(address: str, port: int) -> PortInUseError:
    holder = "another process"
    with contextlib.suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            if connection.laddr and connection.laddr.port == port and connection.pid:
                # Only the name, because a command line may contain secrets, and this message is logged.
                holder = f"process {connection.pid} ({psutil.Process(connection.pid).name()})"
    return PortInUseError(
        f"the chief cannot listen at {address}: the port is in use by {holder}",
        action="end that process, or give the chief another port",
    )


def _parse_introduction(message: Message, *, remote_host: str) -> Introduction:
    return Introduction(
        rank=int(message["rank"]),
        num_processes=int(message["num_processes"]),
        role=str(message["role"]),
        address=str(message["address"]) or remote_host,
        host=str(message["host"]),
        pid=int(message["pid"]),
        versions={str(name): str(value) for name, value in dict(message["versions"]).items()},
    )


def _join_chief(own: Introduction, *, chief: str, wait_s: float, timeout_s: float) -> Meeting:
    """Meets the chief: the side of all other processes."""
    deadline = time.monotonic() + wait_s
    logger.info("%s meets the others at %s", own.role, chief)
    while True:
        link, reason = _connect(chief)
        if link is not None:
            banner = _await(link, deadline=time.monotonic() + _BANNER_TIMEOUT_S, chief=chief)
            if banner is not None:
                return _await_welcome(own, link, waits_s=float(banner["waits_s"]) + timeout_s, chief=chief)
            reason = "the server there sends nothing" if not link.ended else "it closed the connection"
            link.close()
        if time.monotonic() >= deadline:
            raise PeerLostError(
                f"the chief (rank 0, {chief}) did not arrive at the meeting: {reason}, for {wait_s:g} s",
                action="check that it runs, and that this machine can reach its address",
            )
        time.sleep(_RETRY_S)


def connect_to_chief(address: str) -> socket.socket:
    """Opens a connection to the chief's address.

    Raises:
        OSError: the chief cannot be reached.
    """
    sock = socket.create_connection(split_address(address), timeout=_CONNECT_TIMEOUT_S)
    if sock.getsockname() == sock.getpeername():
        # Nobody listens at the port, which is an ephemeral port of this machine: TCP connected the socket to itself.
        sock.close()
        raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
    return sock


def _connect(address: str) -> tuple[Connection | None, str]:
    try:
        return Connection(connect_to_chief(address)), ""
    except socket.gaierror:
        return None, f"the name {split_address(address)[0]} does not resolve"
    except TimeoutError:
        return None, "no answer"
    except OSError as error:
        return None, (error.strerror or str(error)).lower()


def _await(link: Connection, *, deadline: float, chief: str) -> Message | None:
    """Returns the chief's next message; None if the chief closes the connection or the deadline passes."""
    with selectors.DefaultSelector() as selector:
        selector.register(link, selectors.EVENT_READ)
        while (remaining_s := deadline - time.monotonic()) > 0 and not link.ended:
            selector.select(remaining_s)
            try:
                message = link.receive_one()
            except WireError as error:
                message = {"kind": str(error)}
            if message is None or message["kind"] == "beat":
                continue
            if message["kind"] not in ("lockstep", "welcome", "refused") or message.get("protocol", 1) != PROTOCOL:
                link.close()
                raise UnavailableError(
                    f"the process at {chief} is not a chief of this version of Lockstep",
                    received=message["kind"],
                    action="give the chief a port of its own",
                )
            return message
    return None


def _await_welcome(own: Introduction, link: Connection, *, waits_s: float, chief: str) -> Meeting:
    link.send({"kind": "hello", **asdict(own)})
    welcome = _await(link, deadline=time.monotonic() + waits_s, chief=chief)
    if welcome is None:
        happened = "died before all processes had arrived" if link.ended else f"has sent nothing for {waits_s:.0f} s"
        link.close()
        raise PeerLostError(f"the chief (rank 0, {chief}) {happened}", action="check its log")
    if welcome["kind"] == "refused":
        link.close()
        raise _ERRORS.get(str(welcome.get("error")), BackendError)(str(welcome["what"]))
    peers = tuple(
        Peer(rank=int(peer["rank"]), role=str(peer["role"]), address=str(peer["address"]))
        for peer in cast("list[dict[str, Any]]", welcome["peers"])
    )
    return Meeting(
        rank=own.rank,
        peers=peers,
        timeout_s=float(welcome["timeout_s"]),
        links={0: link},
        listener=None,
        chief_address=chief,
        token=str(welcome["token"]),
    )


def open_relay(chief: str, *, token: str) -> socket.socket | None:
    """Opens a connection to JAX's coordination service, through the chief's address.

    Args:
        chief: the chief's address.
        token: the token from the meeting.

    Returns:
        The socket; None if the chief does not answer.
    """
    link, _ = _connect(chief)
    if link is None:
        return None
    try:
        banner = _await(link, deadline=time.monotonic() + _BANNER_TIMEOUT_S, chief=chief)
    except UnavailableError:
        banner = None
    if banner is None:
        link.close()
        return None
    link.send({"kind": "relay", "token": token})
    return link.detach()
