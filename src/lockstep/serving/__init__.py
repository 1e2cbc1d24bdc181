"""Prediction: a loaded model, a batcher, and the server process around them.

This module knows the server only as a process, and imports neither JAX nor Keras: the service starts, watches and ends
servers with it. The server itself is ``python -m lockstep.serving``.
"""

from lockstep.serving.process import (
    ServerCode,
    ServerFailed,
    ServerHandle,
    ServerReady,
    ServerStarting,
    ServerStatus,
    poll,
    start_server,
    stop,
    stop_all,
)

__all__ = [
    "ServerCode",
    "ServerFailed",
    "ServerHandle",
    "ServerReady",
    "ServerStarting",
    "ServerStatus",
    "poll",
    "start_server",
    "stop",
    "stop_all",
]
