"""The main function of a parameter server's process."""

from __future__ import annotations

import logging
import time
from typing import Final

from lockstep.errors import UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.server.server import ParameterServer

LOGGER: Final = logging.getLogger(__name__)


def serve(cluster: Cluster) -> None:
    """Runs a parameter server until the coordinator reports that the training is over.

    Raises:
        EngineError: the address is in use, or does not belong to this machine.
        UnavailableError: no process was connected for too long.
    """
    listener = cluster.listen()
    server = ParameterServer(listener)
    LOGGER.info("%s serves at %s", cluster.process_name, listener.address)
    alone_since_s = time.monotonic()
    try:
        while not server.is_done:
            server.step()
            if listener.peers:
                alone_since_s = time.monotonic()
            elif time.monotonic() - alone_since_s > cluster.start_within_s:
                waited = f"for {cluster.start_within_s:.0f} s"
                raise UnavailableError(
                    f"no process has been connected to {cluster.process_name} at {listener.address} {waited}",
                    action="start the coordinator and the workers, or look into their logs",
                )
    finally:
        listener.close()
    LOGGER.info("%s has applied %d pushes: the training is over", cluster.process_name, server.num_applied)
    LOGGER.info(
        "%s was asked: %s", cluster.process_name, ", ".join(f"{n} {kind}" for kind, n in server.num_requests.items())
    )
