"""What a gang supervisor does next, decided without processes or clocks."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from lockstep.jobs.running.order_parts import ServerOrder
from lockstep.jobs.running.orders import (
    GANG_ORDER,
    GANG_STATUS,
    ORDER,
    Fault,
    GangEnd,
    GangOrder,
    GangOutcome,
    GangPhase,
    GangStatus,
    ProgramEnd,
    ProgramUsage,
    ReplicaOrder,
    ReplicaPhase,
    ReplicaRestart,
    ReplicaStatus,
    initial_status,
)
from lockstep.jobs.running.progress import Progress
from lockstep.jobs.running.restarts import RestartCondition, RestartPolicy
from lockstep.jobs.running.supervision import (
    LINGER_S,
    MAX_SERVER_RESTARTS,
    NUM_KEPT_RESTARTS,
    SERVER_WINDOW_S,
    Step,
    after_report,
    next_step,
    order_of_next_launch,
    restartable_alone,
)

ROLES = ("master", "worker", "ps")
GANG = GangOrder(
    gang_id="g",
    replicas=tuple(
        ReplicaOrder(name=role, role=role, index=0, job="j", command=("x",), spool="/s", log_url="/l") for role in ROLES
    ),
)
OK = ProgramEnd(exit_code=0)
STOPPED = ProgramEnd(signal="SIGTERM", stopped=True)
KILLED = ProgramEnd(signal="SIGKILL")


def _running(name: str) -> ReplicaStatus:
    return ReplicaStatus(name=name, phase=ReplicaPhase.RUNNING, started_time_s=1.0)


def _ended(name: str, end: ProgramEnd, *, at_s: float = 10.0) -> ReplicaStatus:
    return ReplicaStatus(name=name, phase=ReplicaPhase.ENDED, started_time_s=1.0, ended_time_s=at_s, end=end)


def _step(*statuses: ReplicaStatus, stop: bool = False, now_s: float = 10.0) -> Step:
    return next_step(GANG, statuses={s.name: s for s in statuses}, stop_requested=stop, now_s=now_s)


def test_a_gang_is_placed_when_all_of_it_is() -> None:
    assert _step(_running("master")).phase is GangPhase.PLACING
    setting_up = ReplicaStatus(name="ps", phase=ReplicaPhase.SETUP)
    assert _step(_running("master"), _running("worker"), setting_up).phase is GangPhase.STARTING
    assert _step(*map(_running, ROLES)).phase is GangPhase.RUNNING


def test_a_failure_stops_the_others_and_names_the_first_one() -> None:
    assert set(_step(_running("master"), _ended("worker", KILLED), _running("ps")).stop) == {"master", "ps"}
    step = _step(
        _ended("master", ProgramEnd(exit_code=1), at_s=12.0), _ended("worker", KILLED, at_s=11.0), _ended("ps", STOPPED)
    )
    assert step.end == GangEnd(outcome=GangOutcome.FAILED, reason="replica worker: killed by SIGKILL", culprit="worker")


def test_the_leaders_success_ends_servers_at_once_and_the_others_after_a_while() -> None:
    statuses = (_ended("master", OK), _running("worker"), _running("ps"))
    assert _step(*statuses, now_s=10.0).stop == ("ps",)
    assert set(_step(*statuses, now_s=10.0 + LINGER_S).stop) == {"worker", "ps"}
    done = _step(_ended("master", OK), _ended("worker", STOPPED), _ended("ps", STOPPED))
    assert done.end == GangEnd(outcome=GangOutcome.SUCCEEDED)


def test_a_request_stops_all_that_lives() -> None:
    assert set(_step(*map(_running, ROLES), stop=True).stop) == set(ROLES)
    end = _step(*(_ended(name, STOPPED) for name in ROLES), stop=True).end
    assert end is not None
    assert end.outcome is GangOutcome.STOPPED


@pytest.mark.parametrize("stop", [False, True])
def test_a_worker_that_was_done_before_is_no_failure(stop: bool) -> None:
    assert _step(_running("master"), _ended("worker", OK), _running("ps"), stop=False).stop == ()
    end = _step(_ended("master", OK), _ended("worker", OK), _ended("ps", STOPPED), stop=stop).end
    assert end == GangEnd(outcome=GangOutcome.SUCCEEDED)


def test_a_leader_that_ends_well_because_it_was_stopped_is_no_success() -> None:
    saved = ProgramEnd(exit_code=0, stopped=True)
    failed = _step(_ended("master", saved, at_s=12.0), _ended("worker", KILLED, at_s=11.0), _ended("ps", STOPPED))
    assert failed.end is not None
    assert failed.end.outcome is GangOutcome.FAILED
    stopped = _step(*(_ended(name, saved) for name in ROLES), stop=True)
    assert stopped.end is not None
    assert stopped.end.outcome is GangOutcome.STOPPED


def test_a_worker_that_fails_after_the_leader_is_done_spoils_nothing() -> None:
    end = _step(_ended("master", OK, at_s=10.0), _ended("worker", KILLED, at_s=11.0), _ended("ps", STOPPED)).end
    assert end == GangEnd(outcome=GangOutcome.SUCCEEDED)
    before = _step(_ended("master", OK, at_s=11.0), _ended("worker", KILLED, at_s=10.0), _ended("ps", STOPPED)).end
    assert before is not None
    assert before.culprit == "worker"


SERVED_ROLES = ("master", "worker-0", "worker-1", "ps")
SERVED = GangOrder(
    gang_id="s",
    replicas=tuple(
        ReplicaOrder(name=name, role=name.partition("-")[0], index=0, job="j", command=("x",), spool="/s", log_url="/l")
        for name in SERVED_ROLES
    ),
    restart_policy=RestartPolicy(max_restarts=2),
)
LOST = ProgramEnd(problem="its node or launcher was lost", fault=Fault.NODE)
FAILED = ProgramEnd(exit_code=3)


def _served(
    *changed: ReplicaStatus, order: GangOrder = SERVED, stop: bool = False, lost_nodes: Collection[str] = ()
) -> Step:
    statuses = {name: _running(name) for name in SERVED_ROLES} | {status.name: status for status in changed}
    return next_step(order, statuses=statuses, stop_requested=stop, now_s=20.0, lost_nodes=lost_nodes)


@pytest.mark.parametrize(
    "end",
    [KILLED, LOST, ProgramEnd(exit_code=137), ProgramEnd(problem="silent", fault=Fault.STUCK)],
    ids=["killed", "lost", "asks for it", "stuck"],
)
def test_a_worker_beside_parameter_servers_is_launched_again_alone(end: ProgramEnd) -> None:
    step = _served(_ended("worker-1", end))
    assert (step.phase, step.stop, step.end) == (GangPhase.RUNNING, (), None)
    assert {name: (restart.number, restart.time_s) for name, restart in step.restarts.items()} == {
        "worker-1": (1, 20.0)
    }


@pytest.mark.parametrize(
    ("name", "end", "policy"),
    [
        ("master", KILLED, RestartPolicy()),
        ("ps", KILLED, RestartPolicy()),
        ("worker-0", FAILED, RestartPolicy()),
        ("worker-0", ProgramEnd(signal="SIGKILL", fault=Fault.MEMORY), RestartPolicy()),
        ("worker-0", KILLED, RestartPolicy(max_restarts=0)),
        ("worker-0", KILLED, RestartPolicy(condition=RestartCondition.NEVER)),
        ("worker-0", KILLED, RestartPolicy(whole_job=True)),
        ("worker-0", KILLED, None),
    ],
    ids=["leader", "server", "user-error", "memory", "no-budget", "never", "whole-job", "no-policy"],
)
def test_others_and_errors_of_the_users_end_the_gang(name: str, end: ProgramEnd, policy: RestartPolicy | None) -> None:
    step = _served(_ended(name, end), order=replace(SERVED, restart_policy=policy))
    assert step.restarts == {}
    assert set(step.stop) == set(SERVED_ROLES) - {name}


@pytest.mark.parametrize("name", ["worker-0", "ps"])
def test_a_server_is_launched_again_alone_where_the_job_says_so(name: str) -> None:
    order = replace(SERVED, restart_policy=RestartPolicy(servers_alone=True))
    step = _served(_ended(name, KILLED), order=order)
    assert (list(step.restarts), step.stop, step.end) == ([name], (), None)
    assert set(_served(_ended("master", KILLED), order=order).stop) == {"worker-0", "worker-1", "ps"}
    assert _served(_ended(name, KILLED), order=order, lost_nodes=(name,)).restarts == {}


MOVING = replace(SERVED, restart_policy=RestartPolicy(max_restarts=2, workers_move=True), move_within_s=100.0)


def test_a_worker_without_a_machine_waits_for_one_while_the_others_run_on() -> None:
    step = _served(_ended("worker-1", LOST), order=MOVING, lost_nodes=("worker-1",))
    assert (step.phase, step.stop, step.restarts, step.displaced, step.end) == (
        GangPhase.RUNNING,
        (),
        {},
        ("worker-1",),
        None,
    )
    assert list(_served(_ended("worker-1", LOST), order=MOVING).restarts) == ["worker-1"], "it has one again"


@pytest.mark.parametrize("name", ["master", "ps"])
def test_who_is_known_by_his_address_waits_for_none(name: str) -> None:
    for policy in (MOVING.restart_policy, RestartPolicy(workers_move=True, servers_alone=True)):
        step = _served(_ended(name, LOST), order=replace(MOVING, restart_policy=policy), lost_nodes=(name,))
        assert step.displaced == ()
        assert set(step.stop) == set(SERVED_ROLES) - {name}


def test_who_waits_for_a_machine_has_its_part_of_the_budget() -> None:
    waits = _ended("worker-0", LOST, at_s=9.0)
    step = _served(waits, _ended("worker-1", KILLED), order=MOVING, lost_nodes=("worker-0",))
    assert step.displaced == ("worker-0",)
    assert {name: restart.number for name, restart in step.restarts.items()} == {"worker-1": 1}
    once = replace(MOVING, restart_policy=RestartPolicy(max_restarts=1))
    assert set(_served(waits, _ended("worker-1", KILLED), order=once, lost_nodes=("worker-0",)).stop) == {
        "master",
        "ps",
    }


def test_no_worker_is_waited_for_longer_than_its_machine_may_take() -> None:
    lost = [_ended(name, LOST, at_s=at_s) for name, at_s in (("worker-0", 10.0), ("worker-1", 30.0))]

    def step(*changed: ReplicaStatus, now_s: float) -> Step:
        statuses = {name: _running(name) for name in SERVED_ROLES} | {status.name: status for status in changed}
        return next_step(
            MOVING,
            statuses=statuses,
            stop_requested=False,
            now_s=now_s,
            lost_nodes=[status.name for status in changed],
        )

    assert step(lost[0], now_s=10_000.0).displaced == ("worker-0",), "another one works"
    assert step(*lost, now_s=130.0).displaced == ("worker-0", "worker-1")
    assert set(step(*lost, now_s=130.1).stop) == {"master", "ps"}


def test_nobody_gets_another_machine_once_the_leader_is_done() -> None:
    statuses = (_ended("worker-1", LOST), _ended("master", OK))
    step = _served(*statuses, order=MOVING, lost_nodes=("worker-1",))
    assert (step.displaced, step.restarts, step.stop) == ((), {}, ("ps",))
    ended = _served(*statuses, _ended("ps", STOPPED), _ended("worker-0", OK), order=MOVING, lost_nodes=("worker-1",))
    assert ended.end == GangEnd(outcome=GangOutcome.SUCCEEDED)


def test_an_evaluator_is_launched_again_alone() -> None:
    evaluator = replace(SERVED.replicas[1], name="evaluator", role="evaluator")
    order = replace(SERVED, replicas=(*SERVED.replicas, evaluator))
    step = _served(_ended("evaluator", KILLED), order=order)
    assert (list(step.restarts), step.stop, step.end) == (["evaluator"], (), None)
    assert set(_served(_ended("evaluator", FAILED), order=order).stop) == set(SERVED_ROLES)


def test_an_evaluator_is_launched_again_alone_beside_workers_that_train_in_step() -> None:
    evaluator = replace(SERVED.replicas[1], name="evaluator", role="evaluator")
    order = replace(SERVED, replicas=(*SERVED.replicas[:3], evaluator))
    others = ("master", "worker-0", "worker-1")

    def step(*ended: ReplicaStatus) -> Step:
        statuses = {name: _running(name) for name in (*others, "evaluator")} | {one.name: one for one in ended}
        return next_step(order, statuses=statuses, stop_requested=False, now_s=11.0)

    assert (list(step(_ended("evaluator", KILLED)).restarts), step().stop) == (["evaluator"], ())
    assert set(step(_ended("evaluator", FAILED)).stop) == set(others)
    assert set(step(_ended("worker-0", KILLED)).stop) == {"master", "worker-1", "evaluator"}, "they need one another"


def test_an_evaluator_has_time_for_the_last_checkpoint_once_the_leader_is_done() -> None:
    evaluator = replace(SERVED.replicas[1], name="evaluator", role="evaluator")
    order = replace(SERVED, replicas=(*SERVED.replicas, evaluator))
    others = [_ended("master", OK), _ended("worker-0", OK), _ended("worker-1", OK), _ended("ps", STOPPED)]
    for seconds, stop in ((LINGER_S - 1, ()), (LINGER_S, ("evaluator",))):
        statuses = {status.name: status for status in (*others, _running("evaluator"))}
        statuses["master"] = replace(others[0], ended_time_s=20.0)
        assert next_step(order, statuses=statuses, stop_requested=False, now_s=20.0 + seconds).stop == stop


def test_a_policy_of_every_failure_counts_for_a_worker_alone_too() -> None:
    policy = RestartPolicy(condition=RestartCondition.ON_FAILURE)
    step = _served(_ended("worker-0", FAILED), order=replace(SERVED, restart_policy=policy))
    assert [restart.reason for restart in step.restarts.values()] == ["USER_ERROR(exit 3, worker-0)"]


def test_without_parameter_servers_nothing_is_launched_again_alone() -> None:
    gang = replace(SERVED, replicas=SERVED.replicas[:-1])
    assert restartable_alone(gang) == frozenset()
    assert _served(_ended("worker-0", KILLED), order=gang).restarts == {}


def test_all_restarts_of_a_job_have_one_budget() -> None:
    both = (_ended("worker-0", KILLED, at_s=12.0), _ended("worker-1", KILLED, at_s=11.0))
    step = _served(*both)
    assert {name: restart.number for name, restart in step.restarts.items()} == {"worker-1": 1, "worker-0": 2}
    one_left = replace(SERVED, num_restarts=1)
    step = _served(*both, order=one_left)
    assert (step.restarts, set(step.stop)) == ({}, {"master", "ps"}), "the second one's failure ends the gang"
    before = ReplicaRestart(number=2, time_s=5.0, reason="r")
    spent = replace(_running("worker-1"), restarts=(before,))
    assert set(_served(_ended("worker-0", KILLED), spent, order=one_left).stop) == {"master", "worker-1", "ps"}


def test_a_worker_whose_place_is_lost_ends_the_gang() -> None:
    lost = _ended("worker-0", LOST)
    assert set(_served(lost, lost_nodes={"worker-0"}).stop) == {"master", "worker-1", "ps"}
    over = [_ended(name, STOPPED) for name in ("master", "worker-1", "ps")]
    end = _served(lost, *over, lost_nodes={"worker-0"}).end
    assert end is not None
    assert (end.outcome, end.culprit) == (GangOutcome.FAILED, "worker-0")


@pytest.mark.parametrize("lost_nodes", [(), ("worker-0",)], ids=["place", "no place"])
def test_a_worker_that_could_be_launched_again_spoils_no_success(lost_nodes: tuple[str, ...]) -> None:
    killed = _ended("worker-0", KILLED, at_s=9.0)
    step = _served(_ended("master", OK), killed, lost_nodes=lost_nodes)
    assert (step.restarts, step.stop) == ({}, ("ps",))
    over = (_ended("master", OK), killed, _ended("worker-1", OK), _ended("ps", STOPPED))
    assert _served(*over, lost_nodes=lost_nodes).end == GangEnd(outcome=GangOutcome.SUCCEEDED)


def test_who_asks_for_the_end_gets_it_without_a_restart() -> None:
    killed = _ended("worker-0", KILLED)
    step = _served(killed, stop=True)
    assert (step.restarts, set(step.stop)) == ({}, {"master", "worker-1", "ps"})
    end = _served(killed, *(_ended(name, STOPPED) for name in ("master", "worker-1", "ps")), stop=True).end
    assert end == GangEnd(outcome=GangOutcome.STOPPED, reason="stopped on request")


def test_a_gang_of_which_the_rest_is_over_waits_for_who_is_launched_again() -> None:
    others = (_running("master"), _ended("worker-1", OK), _ended("ps", OK))
    assert _served(_ended("worker-0", KILLED), *others).phase is GangPhase.RUNNING


def test_a_launch_goes_on_from_the_one_before() -> None:
    last = replace(
        _ended("worker-0", KILLED), placed_time_s=0.5, pid=7, usage=ProgramUsage(cpu_s=2.0, wall_s=9.0), host="h"
    )
    restart = ReplicaRestart(number=1, time_s=11.0, reason="MACHINE_ERROR(SIGKILL, worker-0)")
    again = order_of_next_launch(SERVED.replicas[1], last=last, restart=restart)
    begun = initial_status(again, now_s=12.0)
    assert (begun.phase, begun.pid, begun.end, begun.ended_time_s) == (ReplicaPhase.PLACED, None, None, None)
    assert (begun.placed_time_s, begun.started_time_s, begun.usage) == (0.5, 1.0, last.usage)
    assert begun.restarts == (restart,)
    assert _served(begun).phase is GangPhase.RUNNING


def test_what_an_earlier_launch_still_says_counts_no_more() -> None:
    restart = ReplicaRestart(number=1, time_s=11.0, reason="r")
    first, second = _running("worker-0"), replace(_running("worker-0"), restarts=(restart,))
    assert after_report(None, first) == first
    assert after_report(_ended("worker-0", KILLED), first) == _ended("worker-0", KILLED), "the last word stands"
    assert after_report(_ended("worker-0", KILLED), second) == second
    assert after_report(second, _ended("worker-0", KILLED)) == second
    assert after_report(second, replace(second, pid=8)).pid == 8


def test_orders_and_statuses_travel_as_json() -> None:
    assert GANG_ORDER.validate_json(GANG_ORDER.dump_json(GANG)) == GANG
    assert GANG_ORDER.validate_json(GANG_ORDER.dump_json(SERVED)) == SERVED
    restart = ReplicaRestart(number=1, time_s=11.0, reason="r")
    again = order_of_next_launch(SERVED.replicas[1], last=_ended("worker-0", KILLED), restart=restart)
    assert ORDER.validate_json(ORDER.dump_json(again)) == again
    status = GangStatus(
        gang_id="g",
        phase=GangPhase.ENDED,
        replicas=(_ended("master", ProgramEnd(exit_code=3, tail=("a", "b"), num_log_entries=2)),),
        end=GangEnd(outcome=GangOutcome.FAILED, reason="r", culprit="master"),
    )
    assert GANG_STATUS.validate_json(GANG_STATUS.dump_json(status)) == status


SERVER = GangOrder(
    gang_id="g",
    replicas=(replace(GANG.replicas[0], server=ServerOrder(ready_within_s=300.0, silent_within_s=3.0)),),
)


def _server_step(status: ReplicaStatus, *, now_s: float = 10.0, lost_nodes: Collection[str] = ()) -> Step:
    statuses = {status.name: status}
    return next_step(SERVER, statuses=statuses, stop_requested=False, now_s=now_s, lost_nodes=lost_nodes)


@pytest.mark.parametrize("end", [KILLED, OK, ProgramEnd(exit_code=1), ProgramEnd(fault=Fault.STUCK, problem="silent")])
def test_a_server_that_was_ready_is_launched_again_however_it_ended(end: ProgramEnd) -> None:
    step = _server_step(replace(_ended("master", end), ready_time_s=2.0))
    assert step.end is None
    assert step.restarts["master"].number == 1
    again = order_of_next_launch(
        SERVER.replicas[0], last=replace(_ended("master", end), ready_time_s=2.0), restart=step.restarts["master"]
    )
    assert initial_status(again, now_s=11.0).ready_time_s is None, "it has to say so again"


def test_a_server_that_cannot_start_is_over_and_one_whose_machine_failed_is_not() -> None:
    assert _server_step(_ended("master", ProgramEnd(exit_code=65))).end == GangEnd(
        outcome=GangOutcome.FAILED, reason="replica master: exit code 65", culprit="master"
    )
    assert _server_step(_ended("master", KILLED)).restarts
    late = ProgramEnd(fault=Fault.STUCK, problem="it was not ready within 300 s")
    assert _server_step(_ended("master", late)).end == GangEnd(
        outcome=GangOutcome.FAILED, reason="replica master: it was not ready within 300 s", culprit="master"
    )
    assert _server_step(_ended("master", KILLED), lost_nodes=("master",)).end is not None


def test_a_server_that_ends_again_and_again_is_over() -> None:
    def status(num_restarts: int) -> ReplicaStatus:
        restarts = tuple(ReplicaRestart(number=n + 1, time_s=10.0 + n, reason="x") for n in range(num_restarts))
        return replace(_ended("master", KILLED), restarts=restarts)

    assert _server_step(status(MAX_SERVER_RESTARTS - 1), now_s=20.0).restarts
    assert _server_step(status(MAX_SERVER_RESTARTS), now_s=20.0).end is not None
    assert _server_step(status(MAX_SERVER_RESTARTS), now_s=20.0 + SERVER_WINDOW_S).restarts, "they were long ago"


def test_the_busy_time_of_a_servers_launches_is_added_up() -> None:
    order = SERVER.replicas[0]
    status = _ended("master", KILLED)
    for launch, busy_s in enumerate((2.0, 3.0, 0.5), start=1):
        status = replace(status, progress=Progress(time_s=10.0, metrics={"busySeconds": busy_s}))
        restart = ReplicaRestart(number=launch, time_s=10.0, reason="x")
        order = order_of_next_launch(order, last=status, restart=restart)
        status = initial_status(order, now_s=11.0)
        assert status.progress is None, "what the server before it has reported does not count twice"
    assert status.busy_s == 5.5
    lying = replace(status, progress=Progress(time_s=10.0, metrics={"busySeconds": -1e9}))
    assert lying.busy_s == 5.5


def test_a_server_keeps_its_last_restarts_and_their_numbers_go_on() -> None:
    order, known = SERVER.replicas[0], _running("master")
    for number in range(1, 2 * NUM_KEPT_RESTARTS):
        now_s = number * SERVER_WINDOW_S
        ended = replace(_ended("master", KILLED), restarts=known.restarts)
        step = _server_step(ended, now_s=now_s)
        order = order_of_next_launch(order, last=ended, restart=step.restarts["master"])
        report = initial_status(order, now_s=now_s)
        assert report.restarts[-1].number == number
        late = known
        known = after_report(replace(known, phase=ReplicaPhase.ENDED), report)
        assert known is report, "a later launch"
        assert after_report(known, late) is known
    assert len(known.restarts) == NUM_KEPT_RESTARTS
