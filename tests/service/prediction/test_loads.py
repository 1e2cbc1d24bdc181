"""The load of a server, from what it reports."""

from __future__ import annotations

import pytest

from lockstep.jobs.running.orders import ProgramUsage, ReplicaPhase, ReplicaStatus
from lockstep.jobs.running.progress import Progress
from lockstep.service.prediction.loads import LoadTracker, ServerLoad


def status(
    time_s: float,
    *,
    open_s: float,
    num_open: float = 0.0,
    cpu_s: float = 0.0,
    beat_s: float | None = None,
    gpu: float | None = None,
) -> ReplicaStatus:
    sums = {"open": num_open, "openSeconds": open_s, "requests": open_s}
    return ReplicaStatus(
        name="master-replica-0",
        phase=ReplicaPhase.RUNNING,
        host="node",
        seen_time_s=time_s,
        usage=ProgramUsage(cpu_s=cpu_s),
        progress=Progress(time_s=time_s if beat_s is None else beat_s, metrics=sums),
        metrics={} if gpu is None else {"gpuUtilization": gpu},
    )


def test_the_mean_of_open_requests_is_exact_however_rarely_it_is_reported() -> None:
    tracker = LoadTracker(cores=4)
    assert tracker.load() == ServerLoad(num_open=0.0)
    tracker.add(status(100.0, open_s=50.0, num_open=3.0))
    assert tracker.load() == ServerLoad(num_open=3.0), "of the first report, only the moment is known"
    tracker.add(status(102.0, open_s=60.0))
    assert tracker.load().num_open == 5.0
    tracker.add(status(102.0, open_s=60.0))
    assert tracker.load().num_open == 5.0, "a status that is known changes nothing"
    tracker.add(status(104.0, open_s=60.0, beat_s=102.0))
    assert tracker.load().num_open == 5.0, "a report without a new heartbeat tells nothing of requests"
    tracker.add(status(106.0, open_s=60.0))
    assert tracker.load().num_open == 0.0
    assert tracker.num_requests == 60.0


def test_cores_and_gpus_are_averaged_over_the_window() -> None:
    tracker = LoadTracker(cores=4)
    for number in range(4):
        tracker.add(status(2.0 * number, open_s=0.0, cpu_s=8.0 * number, gpu=0.5))
    assert tracker.load().cpu_share is None, "6 s show the start of the server"
    for number in range(4, 60):
        tracker.add(status(2.0 * number, open_s=0.0, cpu_s=32.0 + 2.0 * (number - 4), gpu=0.25))
    load = tracker.load()
    assert load.cpu_share == pytest.approx(0.25)
    assert load.gpu_share == pytest.approx(0.25)


@pytest.mark.parametrize("change", [{"time_s": 50.0, "open_s": 70.0}, {"time_s": 104.0, "open_s": 0.5}])
def test_a_server_that_was_launched_again_begins_anew(change: dict[str, float]) -> None:
    tracker = LoadTracker(cores=4)
    tracker.add(status(100.0, open_s=50.0))
    tracker.add(status(102.0, open_s=60.0))
    tracker.add(status(change["time_s"], open_s=change["open_s"], num_open=2.0))
    assert tracker.load() == ServerLoad(num_open=2.0)
