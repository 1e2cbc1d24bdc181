"""Kills a controller at each database statement and each call of the engine in turn, and has another one go on.

A process of its own, with one thread: it forks for each death, so that nothing has to be imported again, and the one
that dies is really killed. Prints one line of JSON for each scenario.

Usage: ``deaths.py new|all|pairs|cancel SCENARIO...``
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine, event

from lockstep.errors import WrongStateError
from lockstep.home import Home
from lockstep.jobs.billing.bills import BILL
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.orders import STATUS
from lockstep.jobs.running.states import TERMINAL, JobEvent, JobState
from lockstep.service.problems import Problems
from lockstep.service.settings import Settings
from lockstep.service.store import JobRecord, JobStore, connect_database, open_database
from lockstep.testing.bench import make_controller
from lockstep.testing.scripted_cluster import AttemptScript, ScriptedCluster

NOW_S: Final = 20_000.0
MAX_PASSES: Final = 60
CATALOGUE: Final = load_catalogue()
NUM_SECONDS: Final = 12
"""At so many points of its life the second controller is killed, for each death of the first: all take 20 minutes."""


def _nothing(_store: JobStore, _job: JobRecord) -> None:
    pass


def _cancel(store: JobStore, job: JobRecord) -> None:
    store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="test", end_reason="CANCELLED(test)")


def _cancel_at(*states: JobState, attempt: int = 0) -> Callable[[JobStore, JobRecord], None]:
    def client(store: JobStore, job: JobRecord) -> None:
        if job.state in states and job.num_restarts >= attempt:
            _cancel(store, job)

    return client


def _spoil_at(state: JobState) -> Callable[[JobStore, JobRecord], None]:
    def client(store: JobStore, job: JobRecord) -> None:
        if job.state is state and "keyOfAnotherVersion" not in job.training_input:
            store.update(job.uid, training_input={"keyOfAnotherVersion": 1})

    return client


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A job's life: what its gangs do, and what somebody else does between two passes."""

    script: Sequence[AttemptScript]
    client: Callable[[JobStore, JobRecord], None] = _nothing
    training_input: dict[str, Any] = field(default_factory=dict[str, Any])
    waited_s: float = 0.0
    max_wait_time_s: float | None = None
    may_not_start: bool = False
    """Whether a death can keep its program from starting at all: what is known of it then is less."""


SCENARIOS: Final = {
    "succeeds": Scenario(script=[AttemptScript.SUCCEEDS]),
    "fails": Scenario(script=[AttemptScript.FAILS]),
    "restarts_twice": Scenario(script=[AttemptScript.KILLED, AttemptScript.LOST, AttemptScript.SUCCEEDS]),
    "restarts_a_replica": Scenario(script=[AttemptScript.RELAUNCHES]),
    "uses_up_its_restarts": Scenario(
        script=[AttemptScript.KILLED], training_input={"lockstep": {"restartPolicy": {"maxRestarts": 1}}}
    ),
    "cancelled_while_it_waits": Scenario(script=[AttemptScript.RUNS], client=_cancel_at(JobState.QUEUED)),
    "cancelled_while_it_is_placed": Scenario(
        script=[AttemptScript.RUNS], client=_cancel_at(JobState.PREPARING), may_not_start=True
    ),
    "cancelled_while_it_runs": Scenario(script=[AttemptScript.RUNS], client=_cancel_at(JobState.RUNNING)),
    "cancelled_after_a_restart": Scenario(
        script=[AttemptScript.KILLED, AttemptScript.RUNS], client=_cancel_at(JobState.RUNNING, attempt=1)
    ),
    "lost_while_it_is_cancelled": Scenario(script=[AttemptScript.LOST], client=_cancel_at(JobState.RUNNING)),
    "runs_too_long": Scenario(script=[AttemptScript.RUNS], training_input={"scheduling": {"maxRunningTime": "1s"}}),
    "waits_too_long": Scenario(script=[AttemptScript.RUNS], waited_s=1801.0, max_wait_time_s=1800.0),
    "unreadable_in_the_queue": Scenario(script=[AttemptScript.RUNS], client=_spoil_at(JobState.QUEUED)),
    "unreadable_while_it_runs": Scenario(script=[AttemptScript.RUNS], client=_spoil_at(JobState.RUNNING)),
}


class Deaths:
    """Counts the points at which a controller can die, and kills this process at one of them.

    A point lies before each statement, each commit and each call of the engine: what lies between two of them changes
    nothing that outlives the process.
    """

    def __init__(self) -> None:
        self.points: list[str] = []
        self.between: list[int] = []
        """Points at which the controller holds no writer's turn of the database, so that others can write."""
        self.act_at: int | None = None
        self.act: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGKILL)
        self._writing = False

    def watch(self, engine: Engine) -> None:
        event.listen(engine, "before_cursor_execute", lambda _c, _cur, statement, *_rest: self.reach(statement))
        event.listen(engine, "commit", lambda _c: self._commit())
        event.listen(engine, "rollback", lambda _c: self._give_turn_back())

    def reach(self, point: str) -> None:
        if len(self.points) == self.act_at:
            self.act()
        if not self._writing:
            self.between.append(len(self.points))
        self._writing = self._writing or point == "BEGIN IMMEDIATE"
        self.points.append(point)

    def begin(self) -> None:
        """Counts from the beginning."""
        self.points, self.between = [], []

    def _commit(self) -> None:
        self.reach("COMMIT")
        self._give_turn_back()

    def _give_turn_back(self) -> None:
        self._writing = False


class Place:
    """Where a scenario is played again and again: a folder, and engines of its database that need not be made anew."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.folder = folder / "run"
        self.deaths = Deaths()
        self._scenario = scenario
        self._template = folder / "template"
        self._controllers, self._others = (connect_database(f"sqlite:///{self.folder / 'd.db'}") for _ in range(2))
        self.deaths.watch(self._controllers)
        self.store = JobStore(self._others, clock=lambda: NOW_S)

    def prepare(self) -> None:
        """Makes the database with the scenario's job, as a client of the service records it."""
        self._template.mkdir()
        database = open_database(f"sqlite:///{self._template / 'd.db'}")
        JobStore(database, clock=lambda: NOW_S - self._scenario.waited_s).create(
            project="local",
            job_id="job",
            training_input={"pythonModule": "program", **self._scenario.training_input},
            labels={},
            simulated=False,
            outputs={kind: f"/nowhere/{kind}" for kind in ("model", "checkpoints", "tensorboard", "logs")},
            max_wait_time_s=self._scenario.max_wait_time_s,
        )
        database.dispose()

    def reset(self) -> None:
        """Goes back to the job that waits, on an engine that knows nothing of it."""
        self.leave()
        if self.folder.exists():
            shutil.rmtree(self.folder)
        shutil.copytree(self._template, self.folder)

    def leave(self) -> None:
        """Closes all connections: a process that is forked must not have any."""
        self._controllers.dispose()
        self._others.dispose()

    def live(self) -> None:
        """Runs a controller until the job is over and the engine holds nothing of it."""
        self.deaths.begin()
        home = Home(path=self.folder)
        controller = make_controller(
            self._controllers,
            cluster=self.cluster(before_act=self.deaths.reach),
            settings=Settings(home=home, bucket=str(home.bucket), max_running_jobs=1),
            problems=Problems(),
            catalogue=CATALOGUE,
            clock=lambda: NOW_S,
        )
        for _ in range(MAX_PASSES):
            job = self.store.get(project="local", job_id="job")
            if job.state in TERMINAL and job.gang_released:
                break
            self._scenario.client(self.store, job)
            controller.step()
        self.leave()

    def die(self, *, at: int) -> bool:
        """Runs a controller in a process that is killed at a point; returns whether it got there."""
        pid = os.fork()
        if pid == 0:
            try:
                self.deaths.act_at = at
                self.live()
            finally:
                os._exit(0)
        _, status = os.waitpid(pid, 0)
        return os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL

    def cluster(self, *, before_act: Callable[[str], None] = lambda _act: None) -> ScriptedCluster:
        return ScriptedCluster(self.folder / "engine", script=self._scenario.script, before_act=before_act)

    def outcome(self) -> dict[str, Any]:
        """Returns all that counts of how the job went: what must be the same whoever died."""
        job = self.store.get(project="local", job_id="job")
        attempts = [(a.start_time_s, a.end_time_s, a.end_reason) for a in self.store.attempts(job.uid)]
        starts = self.cluster().starts()
        return {
            "state": job.state.value,
            "released": job.gang_released,
            "times": (job.start_time_s, job.run_start_time_s, job.end_time_s),
            "end_reason": job.end_reason,
            "error": job.error_message,
            "num_restarts": job.num_restarts,
            "bill": None if job.bill is None else BILL.dump_python(job.bill, mode="json"),
            "attempts": [attempt for attempt in attempts if attempt[0] is not None],
            "events": [(event.kind, event.state, event.detail) for event in self.store.events(job.uid)],
            "replicas": [STATUS.dump_python(replica.status, mode="json") for replica in job.replicas],
            "num_starts": len(starts),
            "started_twice": [start.gang_id for start in starts if start.alive_gangs],
            "left_on_the_engine": self.cluster().held(),
        }


ESSENTIAL: Final = ("state", "released", "end_reason", "error", "num_restarts", "bill", "attempts", "started_twice")


def differences(expected: dict[str, Any], found: dict[str, Any], scenario: Scenario) -> dict[str, Any]:
    """Returns what is not as it should be."""
    keys = expected.keys()
    if scenario.may_not_start and found["num_starts"] < expected["num_starts"]:
        keys = ESSENTIAL
    return {key: (expected[key], found[key]) for key in keys if found[key] != expected[key]}


def explore(name: str, *, folder: Path, num_deaths: int, known: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Plays a scenario without a death, then with one at each point, or with two: at points of the second life as well.

    Args:
        name: the scenario.
        folder: an empty one.
        num_deaths: one or two.
        known: the points of scenarios that were explored; a beginning that is one of theirs is left out.
    """
    scenario = SCENARIOS[name]
    place = Place(folder, scenario)
    place.prepare()
    place.reset()
    place.live()
    points = list(place.deaths.points)
    expected = place.outcome()
    different: list[dict[str, Any]] = []
    num_runs = 0
    for first in range(max((common_length(points, others) for others in known), default=0), len(points)):
        for second in chosen(first, points) if num_deaths == 2 else [None]:
            place.reset()
            assert place.die(at=first), f"{name} has no point {first}"
            if second is not None and not place.die(at=second):
                break
            place.live()
            num_runs += 1
            if changed := differences(expected, place.outcome(), scenario):
                different.append({"at": (first, second), "before": points[first], "different": changed})
    return {"scenario": name, "points": points, "num_runs": num_runs, "expected": expected, "different": different}


def chosen(first: int, points: Sequence[str]) -> list[int]:
    """Returns points of a second life, other ones after each first death, the same in every run."""
    return sorted(random.Random(first).sample(range(len(points)), NUM_SECONDS))


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Returns how many points at their beginning two lives have in common."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((number for number, (mine, theirs) in pairs if mine != theirs), min(len(one), len(other)))


def interrupt(name: str, *, folder: Path) -> dict[str, Any]:
    """Plays a scenario in which a client cancels the job between two statements of the controller, at each of them."""
    place = Place(folder, SCENARIOS[name])
    place.prepare()
    place.reset()
    place.live()
    outcomes: list[dict[str, Any]] = []
    for point in list(place.deaths.between):
        place.reset()

        def cancel() -> None:
            with contextlib.suppress(WrongStateError):  # it is over
                _cancel(place.store, place.store.get(project="local", job_id="job"))

        place.deaths.act_at, place.deaths.act = point, cancel
        place.live()
        outcomes.append({"at": point, **place.outcome()})
    return {"scenario": name, "outcomes": outcomes}


def main() -> None:
    how, *names = sys.argv[1:]
    fast = (
        "/dev/shm" if Path("/dev/shm").is_dir() else None
    )  # what is killed is a process: no disk has to keep anything
    known: list[list[str]] = []
    for name in names:
        with tempfile.TemporaryDirectory(dir=fast) as folder:
            if how == "cancel":
                found = interrupt(name, folder=Path(folder))
            else:
                found = explore(name, folder=Path(folder), num_deaths=2 if how == "pairs" else 1, known=known)
            if how == "new":
                known.append(found["points"])
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
