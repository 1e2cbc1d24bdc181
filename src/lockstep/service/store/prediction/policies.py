"""How a version's prediction servers are scaled, batch their requests, and have them logged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from pydantic import TypeAdapter

DEFAULT_UTILIZATION: Final = 60
"""The utilization that a metric of the contract aims at if the request gives none, in percent."""
DEFAULT_REQUESTS_PER_SERVER: Final = 16.0
DEFAULT_IDLE_TIMEOUT_S: Final = 300.0
DEFAULT_WAKE_TIMEOUT_S: Final = 60.0
DEFAULT_STABILIZATION_WINDOW_S: Final = 60.0


@final
@dataclass(frozen=True, kw_only=True)
class ScalingPolicy:
    """How the number of a version's prediction servers follows its load.

    Attributes:
        min_servers: the minimum number of servers. With 0, an idle version has none, and a request starts one.
        max_servers: the maximum number of servers.
        cpu_percent: how much of the cores of its machine each server should use, in percent; None if that is not
            observed.
        gpu_percent: the share of the time in which the GPUs of each server should be in use, in percent; None if that
            is not observed.
        requests_per_server: how many open requests each server should have: those that it answers and those that wait.
        idle_timeout_s: how long a version has had no request when its last server is ended, in seconds.
        wake_timeout_s: how long a request to a version without a server is held, in seconds; with 0, not at all.
        stabilization_window_s: the number of servers decreases to the highest number that the load of this time asked
            for, in seconds.
    """

    min_servers: int
    max_servers: int
    cpu_percent: int | None = DEFAULT_UTILIZATION
    gpu_percent: int | None = None
    requests_per_server: float = DEFAULT_REQUESTS_PER_SERVER
    idle_timeout_s: float = DEFAULT_IDLE_TIMEOUT_S
    wake_timeout_s: float = DEFAULT_WAKE_TIMEOUT_S
    stabilization_window_s: float = DEFAULT_STABILIZATION_WINDOW_S

    @property
    def first_servers(self) -> int:
        """The number of servers of a new version. It has one at least, which shows whether the model can be served."""
        return max(1, self.min_servers)


@final
@dataclass(frozen=True, kw_only=True)
class RequestLogging:
    """Which requests to a version, and responses of it, are written to a bucket.

    Attributes:
        sampling: the share of the requests that are written, from 0 to 1.
        url: the URL of the folder that they are written to.
    """

    sampling: float
    url: str


@final
@dataclass(frozen=True, kw_only=True)
class Batching:
    """How each server of a version batches requests.

    Attributes:
        max_batch_size: the maximum number of instances in a batch.
        max_latency_s: how long the first request of a batch waits for others, in seconds.
    """

    max_batch_size: int
    max_latency_s: float


BATCHING: Final = TypeAdapter(Batching)
"""Reads and writes a `Batching` as JSON."""

REQUEST_LOGGING: Final = TypeAdapter(RequestLogging)
"""Reads and writes a `RequestLogging` as JSON."""

SCALING: Final = TypeAdapter(ScalingPolicy)
"""Reads and writes a `ScalingPolicy` as JSON."""
