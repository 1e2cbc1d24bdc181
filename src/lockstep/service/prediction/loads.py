"""The load of prediction servers, computed from the sums that their heartbeats and runners report."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final, final

from lockstep.jobs.running.orders import ReplicaStatus

WINDOW_S: Final = 30.0
"""The time over which the use of cores and GPUs is averaged, in seconds."""
MIN_WINDOW_S: Final = 10.0
"""The shortest time for which it is known, in seconds. Before, a new server still shows the work of its start."""


@final
@dataclass(frozen=True, kw_only=True)
class ServerLoad:
    """The load of one prediction server.

    Attributes:
        num_open: the mean number of open requests between its last two reports: those that it answered, and those that
            waited.
        cpu_share: the share of its machine's cores that it used over the last `WINDOW_S`; None if that is not known.
        gpu_share: the share of that time in which its GPUs were in use; None if that is not known.
    """

    num_open: float
    cpu_share: float | None = None
    gpu_share: float | None = None


@final
@dataclass(frozen=True, kw_only=True)
class _Report:
    time_s: float
    cpu_s: float
    gpu_share: float | None
    beat_s: float
    num_open: float
    open_s: float
    num_requests: float


@final
class LoadTracker:
    """Computes the load of one prediction server from its statuses, in the order in which they are reported.

    All times are of the server's own node, so it does not matter if the clocks of nodes differ.

    Args:
        cores: the number of cores of its machine.

    Attributes:
        num_requests: the number of requests that it has answered or is answering, as far as it has reported.
    """

    def __init__(self, *, cores: float) -> None:
        self._cores = cores
        self._reports: deque[_Report] = deque()
        self._num_open = 0.0
        self.num_requests = 0.0

    def add(self, status: ReplicaStatus) -> None:
        """Adds a status. One that is known already changes nothing."""
        progress, seen_s = status.progress, status.seen_time_s
        if progress is None or seen_s is None or (self._reports and seen_s == self._reports[-1].time_s):
            return
        report = _Report(
            time_s=seen_s,
            cpu_s=status.usage.cpu_s,
            gpu_share=status.metrics.get("gpuUtilization"),
            beat_s=progress.time_s,
            num_open=progress.metrics.get("open", 0.0),
            open_s=progress.metrics.get("openSeconds", 0.0),
            num_requests=progress.metrics.get("requests", 0.0),
        )
        if self._reports and _is_restarted(self._reports[-1], report):
            self._reports.clear()
        self._num_open = self._mean_open(report)
        self.num_requests = report.num_requests
        self._reports.append(report)
        while len(self._reports) > 2 and self._reports[1].time_s <= seen_s - WINDOW_S:
            self._reports.popleft()

    def load(self) -> ServerLoad:
        """Returns the load at the last status."""
        if not self._reports:
            return ServerLoad(num_open=0.0)
        first, last = self._reports[0], self._reports[-1]
        took_s = last.time_s - first.time_s
        if took_s < MIN_WINDOW_S:
            return ServerLoad(num_open=self._num_open)
        gpu = [report.gpu_share for report in self._reports if report.gpu_share is not None]
        return ServerLoad(
            num_open=self._num_open,
            cpu_share=max(0.0, last.cpu_s - first.cpu_s) / took_s / self._cores,
            gpu_share=sum(gpu) / len(gpu) if gpu else None,
        )

    def _mean_open(self, report: _Report) -> float:
        if not self._reports:
            return report.num_open
        before = self._reports[-1]
        took_s = report.beat_s - before.beat_s
        if took_s <= 0:  # no heartbeat since
            return self._num_open
        return (report.open_s - before.open_s) / took_s


def _is_restarted(before: _Report, report: _Report) -> bool:
    """Whether the server was launched again between two reports, or its node's clock was set back."""
    return report.time_s < before.time_s or report.beat_s < before.beat_s or report.open_s < before.open_s
