"""A worker beside parameter servers whose machine is gone goes on alone on another, and pays for each by its time."""

from __future__ import annotations

import time

import pytest
from tests.service.lab import SIX, Lab, accounts

from lockstep.jobs.billing.node_costs import NodeShare
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import NodeState
from lockstep.jobs.running.orders import GANG_ORDER
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.billing.usages import job_usage
from lockstep.service.store import JobRecord
from lockstep.service.store.control.moves import Move, Stay, machine_stays
from lockstep.testing.clusters import SERVED

WORKER = "worker-replica-0"
NUMBER = 1
"""Of that worker among the replicas."""
MOVES = {"restartPolicy": {"workersMove": True}}


def begin(lab: Lab, **own: object) -> JobRecord:
    lab.bench.create("job", SERVED.format(folder=str(lab.bench.home.path)), **SIX, lockstep={**MOVES, **own})
    return lab.bench.step_until("job", lambda job: runs(job) and lives(lab) == 1 and is_heard_of(job))


def is_heard_of(job: JobRecord) -> bool:
    """Whether every replica has reported since the job began to run: nobody is paid for less than that."""
    return all((replica.status.seen_time_s or 0.0) > (job.run_start_time_s or 0.0) for replica in job.replicas)


def runs(job: JobRecord) -> bool:
    return job.state is JobState.RUNNING and all(replica.status.phase == "running" for replica in job.replicas)


def lives(lab: Lab) -> int:
    """Returns how often the worker's program has begun to listen at its address."""
    path = lab.bench.home.path / "lives-0"
    return len(path.read_text()) if path.exists() else 0


def machines(job: JobRecord) -> list[str]:
    assert job.gang_order is not None
    return [replica.machine for replica in GANG_ORDER.validate_python(job.gang_order).replicas]


def lose(lab: Lab, job: JobRecord, *, number: int = NUMBER) -> str:
    name = machines(job)[number]
    lab.machines.lose(name)
    lab.cluster.lose_node(f"{job.uid}-0", replica=job.replicas[number].status.name)
    return name


def told(lab: Lab) -> list[str]:
    kinds = ("replica_displaced", "replica_restarted", "restarted")
    return [event.detail for event in lab.bench.store.events(lab.bench.job("job").uid) if event.kind in kinds]


def await_worker(lab: Lab) -> JobRecord:
    return lab.bench.step_until("job", lambda job: runs(job) and lives(lab) == 2)


@pytest.mark.heavy
def test_the_others_run_on_and_each_machine_is_paid_for_its_time(lab: Lab) -> None:
    before = begin(lab)
    lab.machines.hold = {"cpu"}  # the next machine takes its time
    gone = lose(lab, before)
    waiting = lab.bench.step_until("job", lambda job: bool(job.moves))
    [move] = waiting.moves
    assert (move.replica, move.machine, move.time_s) == (WORKER, gone, None)
    lab.step_until(lambda: len([node for node in lab.ledger if node.node_type == "cpu"]) == 5)
    lab.bench.restart()  # who waits for the machine is in the database
    waited_s = time.time()
    lab.machines.hold = set()
    after = await_worker(lab)
    assert [old.status.pid == new.status.pid for old, new in zip(before.replicas, after.replicas, strict=True)] == [
        number != NUMBER for number in range(6)
    ]
    assert (after.attempt, after.num_restarts) == (0, 1)
    assert told(lab) == [
        f"PREEMPTED(worker-0): only {WORKER} waits for another machine",
        f"NODE_LOST(worker-0): only {WORKER} is launched again, restart 1 of at most 3",
    ]
    came = machines(after)[NUMBER]
    assert came != gone
    assert [name for name in machines(after) if name != came] == [name for name in machines(before) if name != gone]
    (lab.bench.home.path / "go").touch()
    job = lab.bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED
    [attempt] = lab.bench.store.attempts(job.uid)
    [move] = attempt.moves
    assert move.time_s is not None
    assert move.lost_time_s < waited_s < move.time_s
    usages = job_usage(job, attempts=[attempt], catalogue=load_catalogue(), now_s=0.0).usages
    assert [(usage.machine, usage.start_time_s, usage.end_time_s) for usage in usages if usage.replica == WORKER] == [
        (gone, attempt.start_time_s, move.lost_time_s),
        (came, move.time_s, attempt.end_time_s),
    ]
    assert len(usages) == 7
    node = next(node for node in lab.ledger if node.name == gone)
    assert (node.state, node.reason) == (NodeState.DOWN, "its machine is gone")
    costs = accounts(lab).nodes_of(job, now_s=time.time())
    assert costs is not None
    ran_s = sum(usage.end_time_s - usage.start_time_s for usage in usages)
    assert float(costs.row.nodes[NodeShare.USED].length_s) == pytest.approx(ran_s, abs=0.1)


@pytest.mark.heavy
def test_a_machine_that_goes_before_the_worker_is_there_is_followed_by_the_next(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = begin(lab)
    lose(lab, before)
    named: list[str] = []

    def lost_too(gang_id: str, *, replica: str, machine: str) -> None:
        named.append(machine)
        if len(set(named)) == 1:
            if machine in lab.machines.names():
                lab.machines.lose(machine)
            lab.cluster.lose_machine(gang_id, replica=replica, machine=machine)
        else:
            move(gang_id, replica=replica, machine=machine)

    move = lab.cluster.move
    monkeypatch.setattr(lab.cluster, "move", lost_too)
    job = await_worker(lab)
    assert machines(job)[NUMBER] == named[-1]
    assert [(move.machine, move.time_s is None) for move in job.moves] == [
        (machines(before)[NUMBER], False),
        (named[0], False),
    ]
    assert len(told(lab)) == 3


@pytest.mark.heavy
def test_a_lost_server_takes_the_whole_gang_and_the_moves_begin_anew(lab: Lab) -> None:
    lose(lab, begin(lab))
    moved = await_worker(lab)
    lose(lab, moved, number=5)
    job = lab.bench.step_until("job", lambda job: job.attempt == 1 and runs(job))
    assert (job.moves, job.num_restarts) == ((), 2)
    assert told(lab)[-1] == "NODE_LOST(ps-1): restart 2 of at most 3"
    [attempt] = lab.bench.store.attempts(job.uid)
    assert attempt.moves == moved.moves


@pytest.mark.heavy
def test_without_any_worker_the_job_waits_for_as_long_as_machines_may_take(lab: Lab) -> None:
    before = begin(lab, provisioningTimeout="1s")
    lab.machines.refusals = {"cpu": "none left"}
    for number in (1, 2):
        lose(lab, before, number=number)
    waited = lab.bench.step_until("job", lambda job: len(job.moves) == 2)
    assert runs_still(waited)
    for _ in range(30):
        lab.bench.step()
    assert lab.bench.job("job").attempt == 0, "a worker is left"
    lose(lab, waited, number=3)
    job = lab.bench.step_until("job", lambda job: job.attempt == 1)
    assert job.num_restarts == 1
    assert told(lab)[-1].startswith("PREEMPTED(worker-")


def runs_still(job: JobRecord) -> bool:
    return [replica.status.phase for replica in job.replicas].count("running") == 4


@pytest.mark.heavy
def test_who_did_not_ask_for_it_has_the_whole_job_started_again(lab: Lab) -> None:
    lose(lab, begin(lab, restartPolicy={}))
    job = lab.bench.step_until("job", lambda job: job.attempt == 1 and runs(job))
    assert told(lab) == ["PREEMPTED(worker-0): restart 1 of at most 3"]
    assert job.moves == ()


@pytest.mark.heavy
def test_a_job_that_is_cancelled_while_a_worker_waits_ends(lab: Lab) -> None:
    before = begin(lab)
    lab.machines.hold = {"cpu"}
    lose(lab, before)
    lab.bench.step_until("job", lambda job: bool(job.moves))
    lab.bench.store.advance(before.uid, JobEvent.CANCEL_REQUESTED, detail="test")
    assert lab.bench.step_until_over("job").state is JobState.CANCELLED
    lab.step_until(lambda: {node.state for node in lab.ledger} <= {NodeState.READY, NodeState.DOWN})


@pytest.mark.parametrize(
    ("moves", "expected"),
    [
        ([], [("z", 10.0, 50.0)]),
        ([Move(replica="a", machine="x", lost_time_s=20.0, time_s=30.0)], [("x", 10.0, 20.0), ("z", 30.0, 50.0)]),
        ([Move(replica="a", machine="x", lost_time_s=20.0)], [("x", 10.0, 20.0)]),
        ([Move(replica="b", machine="x", lost_time_s=20.0)], [("z", 10.0, 50.0)]),
        ([Move(replica="a", machine="x", lost_time_s=5.0, time_s=8.0)], [("z", 10.0, 50.0)]),
        (
            [
                Move(replica="a", machine="x", lost_time_s=20.0, time_s=30.0),
                Move(replica="a", machine="y", lost_time_s=30.0, time_s=40.0),
            ],
            [("x", 10.0, 20.0), ("z", 40.0, 50.0)],
        ),
    ],
    ids=["none", "one", "waits", "another", "before it ran", "lost at once"],
)
def test_a_replica_is_charged_for_the_machines_that_it_had(
    moves: list[Move], expected: list[tuple[str, float, float]]
) -> None:
    found = machine_stays("a", machine="z", moves=moves, start_time_s=10.0, end_time_s=50.0)
    assert list(found) == [Stay(machine=name, start_time_s=start, end_time_s=end) for name, start, end in expected]
