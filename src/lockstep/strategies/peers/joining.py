"""Connects this process to the others of its job: the meeting, then the watchdog, then JAX's own coordination.

JAX leaves some choices to the network's configuration. This module makes them from the results of the meeting:

- JAX's coordination service is reached through the chief's one address.
- Collectives on CPUs listen at the interface by which the processes have met. By default, gloo uses the address that
  the machine's name resolves to, which is often 127.0.1.1.
- No proxy is used.
"""

# JAX is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportPrivateImportUsage=false

from __future__ import annotations

import functools
import logging
import math
import os
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Final

from lockstep.errors import BackendError, ConfigError, EngineError, UnavailableError
from lockstep.processes.ports import reserve_address
from lockstep.strategies.peers.endings import ProcessExit
from lockstep.strategies.peers.meeting import Meeting, meet_peers, open_relay
from lockstep.strategies.peers.relay import LOOPBACK, Relay
from lockstep.strategies.peers.watchdog import Watchdog, set_current_watchdog
from lockstep.topology import Topology
from lockstep.upstream.jax_processes import abandon_coordination, backend_started, bind_cpu_collectives

logger = logging.getLogger(__name__)

DEFAULT_TIMEOUT_S: Final = 15.0
"""How long another process may be silent, or take to arrive at the meeting, by default."""

MANAGED_WAIT_S: Final = 300.0
"""How long a process that a job service started waits for the others.

It is longer because the service itself notices which process does not start.
"""

TIMEOUT_VARIABLE: Final = "LOCKSTEP_PEER_TIMEOUT_S"
WAIT_VARIABLE: Final = "LOCKSTEP_MEETING_TIMEOUT_S"

_JAX_TIMEOUT_S: Final = 86400
"""The timeout of JAX's own heartbeats: a day, so that Lockstep's watchdog always reports a lost peer first."""

_PROXY_EXCEPTIONS: Final = "no_grpc_proxy"
_PROXY_WARNING: Final = "jax_check_proxy_envs"


def meet(topology: Topology, *, timeout_s: float | None = None, wait_s: float | None = None) -> None:
    """Meets the other processes of the job and starts JAX's coordination. Blocks until all processes have arrived.

    A second call in a process with the same job does nothing.

    Args:
        topology: the members of the job. For a job of one process, this function does nothing.
        timeout_s: how long a peer may be silent before every process ends, in seconds. By default,
            ``LOCKSTEP_PEER_TIMEOUT_S`` or 15. The chief's value applies to all processes.
        wait_s: how long to wait for the other processes, in seconds. By default, ``LOCKSTEP_MEETING_TIMEOUT_S``; if it
            is not set, 300 if a job service has started this process, else the same as `timeout_s`.

    Raises:
        BackendError: JAX has started already, this process has joined another job, or the processes run different
            versions.
        ConfigError: the processes do not agree on their number or on their ranks, or a variable is not a positive
            number.
        PeerLostError: another process did not arrive at the meeting.
        PortInUseError: this process is the chief, and another program uses its port.
        UnavailableError: something else than the chief answers at the chief's address, or JAX did not start.
    """
    import jax  # slow to import

    process_id, num_processes = topology.process_id, topology.num_processes
    if num_processes == 1:
        return
    if jax.distributed.is_initialized():
        if (jax.process_count(), jax.process_index()) != (num_processes, process_id):
            raise BackendError(
                "this process has joined another job already",
                received=f"process {jax.process_index()} of {jax.process_count()}",
                allowed=f"process {process_id} of {num_processes}",
            )
        return
    if backend_started():
        raise BackendError(
            "the processes cannot meet: JAX has started",
            action="make the strategy before the first computation and before any model",
        )
    silence_s = timeout_s or seconds_from(os.environ, TIMEOUT_VARIABLE) or DEFAULT_TIMEOUT_S
    patience_s = (
        wait_s or seconds_from(os.environ, WAIT_VARIABLE) or (MANAGED_WAIT_S if topology.managed else silence_s)
    )
    process_exit = ProcessExit()
    meeting = meet_peers(topology, wait_s=patience_s, timeout_s=silence_s)
    watchdog = Watchdog(meeting, on_loss=process_exit.exit_now)
    set_current_watchdog(watchdog)
    process_exit.watch(watchdog, on_exit=functools.partial(_finish, watchdog))
    _start_jax(meeting, watchdog)


def seconds_from(env: Mapping[str, str], name: str) -> float | None:
    """Reads a number of seconds from an environment variable; returns None if the variable is not set.

    Raises:
        ConfigError: the value is not a positive number.
    """
    text = env.get(name)
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ConfigError(name, received=text, allowed="a number of seconds above 0")
    return value


def _start_jax(meeting: Meeting, watchdog: Watchdog) -> None:
    import jax

    with ExitStack() as stack:
        if meeting.rank == 0:
            port = stack.enter_context(_service_port())
            watchdog.relay_to(port)
        else:
            open_service = functools.partial(open_relay, meeting.chief_address, token=meeting.token)
            port = Relay().listen(open_service)
        bind_cpu_collectives(meeting.own_host)
        address = f"{LOOPBACK}:{port}"
        stack.enter_context(_without_proxy())
        try:
            jax.distributed.initialize(
                coordinator_address=address,
                coordinator_bind_address=address,
                num_processes=len(meeting.peers),
                process_id=meeting.rank,
                cluster_detection_method="deactivate",
                heartbeat_timeout_seconds=_JAX_TIMEOUT_S,
            )
        except RuntimeError as error:
            raise UnavailableError(f"JAX did not start in {meeting.peers[meeting.rank]}: {error}") from error


@contextmanager
def _service_port() -> Generator[int]:
    """Reserves a port for JAX's coordination service within the block, in which the service binds it.

    The kernel could give an ephemeral port to another connection before the service binds it.
    """
    try:
        held = reserve_address(LOOPBACK)
    except EngineError as error:
        raise UnavailableError(f"there is no port for JAX's coordination service: {error}") from error
    try:
        yield int(held.address.rpartition(":")[2])
    finally:
        held.close()


@contextmanager
def _without_proxy() -> Generator[None]:
    """Keeps gRPC from using a proxy for this machine's own loopback address, which would hang."""
    import jax

    before, warned = os.environ.get(_PROXY_EXCEPTIONS), jax.config.read(_PROXY_WARNING)
    os.environ[_PROXY_EXCEPTIONS] = ",".join(filter(None, [before, LOOPBACK]))
    jax.config.update(_PROXY_WARNING, False)  # JAX would warn of a problem that cannot occur here
    try:
        yield
    finally:
        jax.config.update(_PROXY_WARNING, warned)
        if before is None:
            del os.environ[_PROXY_EXCEPTIONS]
        else:
            os.environ[_PROXY_EXCEPTIONS] = before


def _finish(watchdog: Watchdog, failed: bool) -> None:  # noqa: FBT001 - a callback
    """Ends this process's part in the job, before the interpreter and JAX end."""
    import jax

    if not failed:
        jax.block_until_ready(jax.live_arrays())  # the others may wait for this process's part of the last steps
        watchdog.leave()
    abandon_coordination()
