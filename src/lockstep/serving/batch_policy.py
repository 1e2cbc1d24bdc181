"""How a prediction server batches requests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True, kw_only=True)
class BatchPolicy:
    """The policy of batching requests.

    Attributes:
        max_batch_size: the maximum number of instances in a batch. A longer request takes several runs, and runs of
            other requests may come between them.
        max_latency_s: how long the first request of a batch waits for other requests, in seconds. With 0, a batch
            consists of the requests that arrived while the model ran before.
        max_waiting: the maximum number of requests that wait for a run. Further requests are rejected.
    """

    max_batch_size: int = 64
    max_latency_s: float = 0.0
    max_waiting: int = 256
