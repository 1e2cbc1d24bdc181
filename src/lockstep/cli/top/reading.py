"""Reads what `lockstep top` shows of a job: its replicas' series, its progress, its cost, its last line."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, final

from lockstep.jobs.running.states import TERMINAL

if TYPE_CHECKING:
    from lockstep.client import Client

WINDOW_S: Final = 300.0
"""Of a running job, the series of this long are shown, in seconds."""
NUM_BARS: Final = 24
MAX_LOG_PAGES: Final = 8
"""How many pages of the log are read at each look, at most. A log that grows faster is caught up with later."""
MAX_REPLICAS: Final = 100

_RECEIVED: Final = "networkReceivedBytesPerSecond"
_SENT: Final = "networkSentBytesPerSecond"
NETWORK: Final = "networkBytesPerSecond"
"""What the nodes received and sent together."""
SHOWN: Final = ("cpuCores", "memoryBytes", "gpuUtilization", NETWORK, "examplesPerSecond", "stepsPerSecond")
_READ: Final = ("cpuCores", "memoryBytes", "gpuUtilization", _RECEIVED, _SENT, "examplesPerSecond", "stepsPerSecond")

Points = Sequence[tuple[float, float]]
"""Pairs of a time, in seconds since 1970 UTC, and a value."""


@final
@dataclass(frozen=True, kw_only=True)
class Curves:
    """The series of a replica, or of a whole job.

    Attributes:
        points: the points by the name of the metric; at least one for each name.
        interval_s: the time between two points, in seconds.
    """

    points: Mapping[str, Points] = field(default_factory=dict[str, Points])
    interval_s: float = 1.0

    def to_json(self) -> dict[str, float]:
        """Returns the last values."""
        return {name: points[-1][1] for name, points in self.points.items()}


@final
@dataclass(frozen=True, kw_only=True)
class View:
    """What is shown of a job.

    Attributes:
        job: the job, in the contract's JSON form.
        curves: the series of each replica, by its name, in the replicas' order.
        last_line: the last line of the log; empty if none was printed, or it was not asked for.
    """

    job: Mapping[str, Any]
    curves: Mapping[str, Curves]
    last_line: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.job["state"] in TERMINAL

    @property
    def cost(self) -> str:
        """The cost, or the cost so far; "-" if there is none yet."""
        own = self.job["lockstep"]
        charged = own["bill"] or own["accrued"]
        return "-" if charged is None else str(charged["text"])

    @property
    def progress(self) -> str:
        """The program's progress, or else what the job waits for, or why it ended."""
        own = self.job["lockstep"]
        if own["progress"] is not None:
            return str(own["progress"]["text"])
        return str(own["waitingFor"] or own["endReason"] or "")

    def to_json(self) -> dict[str, Any]:
        """Returns the view as JSON, with the last value of each series."""
        return {
            "jobId": self.job["jobId"],
            "state": self.job["state"],
            "progress": self.progress,
            "cost": self.cost,
            "lastLine": self.last_line,
            "replicas": [{"replica": name, **curves.to_json()} for name, curves in self.curves.items()],
        }

    def to_rows(self, *, is_alone: bool) -> list[dict[str, Any]]:
        """Returns the rows of the CSV, with the last value of each series.

        Args:
            is_alone: whether each replica has a row; else the job has one, without a replica.
        """
        own = {"jobId": self.job["jobId"], "state": self.job["state"], "progress": self.progress, "cost": self.cost}
        if is_alone and self.curves:
            return [{**own, "replica": name, **curves.to_json()} for name, curves in self.curves.items()]
        return [{**own, "replica": None, **whole(self).to_json()}]


@final
class LastLine:
    """Follows a job's log and keeps its last line. It never reads a long log from its beginning.

    Args:
        client: a client of the service.
        job: the job's name.
        since_s: entries before this time are not read, in seconds since 1970 UTC.
    """

    def __init__(self, client: Client, job: str, *, since_s: float) -> None:
        self._client = client
        self._job = job
        since = datetime.fromtimestamp(since_s, tz=UTC).isoformat()
        self._filter = f'timestamp>="{since}"'
        self._cursor = ""
        self.text = ""

    def read(self) -> str:
        """Reads on, for some pages at most, and returns the last line so far.

        Raises:
            LockstepError: the log cannot be read.
        """
        for _ in range(MAX_LOG_PAGES):
            page = self._client.log_page(self._job, cursor=self._cursor, filter_text=self._filter)
            self._cursor = page["cursor"]
            if page["entries"]:
                self.text = str(page["entries"][-1]["textPayload"])
            if not page["more"]:
                break
        return self.text


def read_job(client: Client, job: Mapping[str, Any], *, last_line: str = "", now_s: float | None = None) -> View:
    """Returns what is shown of a job; sends a request for each 20 replicas.

    Args:
        client: a client of the service.
        job: the job, in the contract's JSON form.
        last_line: the last line of its log.
        now_s: the time, in seconds since 1970 UTC; this machine's by default.

    Raises:
        LockstepError: the service refuses, or its bucket cannot be read.
    """
    query: dict[str, Any] = {"name": list(_READ), "maxPoints": NUM_BARS}
    if job["state"] not in TERMINAL:
        since_s = (time.time() if now_s is None else now_s) - WINDOW_S
        query["since"] = datetime.fromtimestamp(since_s, tz=UTC).isoformat()
    curves: dict[str, Curves] = {}
    if job["lockstep"]["replicas"]:  # otherwise it has no series yet
        for page in client.metric_pages(job["jobId"], query=query):
            curves |= _by_replica(page["series"], interval_s=page["intervalSeconds"])
            if len(curves) >= MAX_REPLICAS:
                break
    return View(job=job, curves=curves, last_line=last_line)


def _by_replica(series: Iterable[Mapping[str, Any]], *, interval_s: float) -> dict[str, Curves]:
    points: dict[str, dict[str, Points]] = {}
    for each in series:
        if each["points"]:
            points.setdefault(each["replica"], {})[each["name"]] = [(time_s, value) for time_s, value in each["points"]]
    return {replica: Curves(points=_with_network(found), interval_s=interval_s) for replica, found in points.items()}


def _with_network(points: Mapping[str, Points]) -> dict[str, Points]:
    """Returns the series with one for the network, which the service measures in two directions."""
    both = [points[name] for name in (_RECEIVED, _SENT) if name in points]
    kept = {name: found for name, found in points.items() if name not in (_RECEIVED, _SENT)}
    return {**kept, NETWORK: added(both)} if both else kept


def added(series: Sequence[Points]) -> Points:
    """Returns the sum of several series of the same intervals, at all times that one of them has."""
    sums: dict[float, float] = {}
    for points in series:
        for time_s, value in points:
            sums[time_s] = sums.get(time_s, 0.0) + value
    return sorted(sums.items())


def whole(view: View) -> Curves:
    """Returns the series of a whole job: the sums over its replicas, except for rates of the whole job.

    A GPU's share is averaged. Each replica reports the examples of the whole job, so the largest rate counts.
    """
    points: dict[str, Points] = {}
    for name in SHOWN:
        found = [curves.points[name] for curves in view.curves.values() if name in curves.points]
        if not found:
            continue
        if name in ("examplesPerSecond", "stepsPerSecond"):
            points[name] = max(found, key=lambda series: series[-1][1])
        elif name == "gpuUtilization":
            points[name] = [(time_s, value / len(found)) for time_s, value in added(found)]
        else:
            points[name] = added(found)
    interval_s = max((curves.interval_s for curves in view.curves.values()), default=1.0)
    return Curves(points=points, interval_s=interval_s)
