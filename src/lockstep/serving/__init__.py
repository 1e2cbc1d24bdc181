"""Prediction servers: a loaded model, a batcher, and the server process around them.

The service uses this module to start, watch and end servers as processes. The module imports neither JAX nor Keras. The
server itself is ``python -m lockstep.serving``.
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
