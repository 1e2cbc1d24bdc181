"""Quotas in the scheduler: whom they hold back, and whom not."""

from __future__ import annotations

import pytest
from tests.jobs.scheduling.simulated import demand, job, make_scheduler, node
from tests.jobs.scheduling.test_scheduler import SMALL, arrive, end, gang, reason, smalls, start_by

from lockstep.jobs.scheduling import QueuedJob, Quota


def test_who_is_held_by_a_quota_keeps_nobody_else_waiting() -> None:
    scheduler = make_scheduler(*smalls(3), quotas={"p": Quota(machines=1)})
    jobs = [gang(f"p{number}", 1, at_s=float(number), project="p", priority=5) for number in range(3)]
    assert arrive(scheduler, *jobs, gang("other", 2, at_s=9.0)) == ["p0", "other"]
    assert start_by(scheduler, "p1") is None
    assert reason(scheduler, "p1") == "quota of project p: 1 of 1 machines in use by job job_p0"
    assert end(scheduler, "other", now_s=10.0) == []
    assert end(scheduler, "p0", now_s=11.0) == ["p1"]
    scheduler.withdraw("p2")
    assert end(scheduler, "p1", now_s=12.0) == []
    assert arrive(scheduler, gang("p3", 1, project="p"), now_s=13.0) == ["p3"], "nothing is in use any more"


def test_a_quota_binds_before_machines_do_and_frees_with_it() -> None:
    scheduler = make_scheduler(
        *smalls(1), node("v", node_type="v100-box"), quotas={"p": Quota(accelerators={"V100": 3})}
    )
    first, second = (
        job(uid, demand(V100=2), project="p", create_time_s=at_s) for uid, at_s in (("a", 0.0), ("b", 1.0))
    )
    assert arrive(scheduler, first, second, gang("cpu", 1, project="p")) == ["a", "cpu"]
    scheduler.set_quotas({"p": Quota(accelerators={"V100": 4})})
    assert arrive(scheduler, now_s=1.0) == ["b"]


def test_jobs_of_one_project_that_need_the_same_nodes_may_differ_in_what_counts() -> None:
    scheduler = make_scheduler(*smalls(3), quotas={"p": Quota(accelerators={"V100": 1})})

    def simulated(uid: str, number: int) -> QueuedJob:
        return QueuedJob(
            uid=uid,
            name=uid,
            project="p",
            create_time_s=9.0 - number,
            demands=(SMALL,),
            hold_s=9.0,
            accelerators={"V100": number},
        )

    assert arrive(scheduler, simulated("a", 2), simulated("b", 1), simulated("c", 0)) == ["b", "c"]


def test_who_is_behind_in_a_project_leaves_the_quota_to_who_was_promised_a_start() -> None:
    scheduler = make_scheduler(*smalls(2), node("v", node_type="v100-box"), quotas={"p": Quota(machines=2)})
    arrive(scheduler, gang("x", 2, hold_s=100.0), gang("ahead", 2, at_s=1.0, project="p"))
    assert start_by(scheduler, "ahead") == 100.0
    behind = job("behind", demand(V100=1), create_time_s=2.0, project="p", hold_s=500.0)
    assert arrive(scheduler, behind) == []
    assert reason(scheduler, "behind") == (
        "quota of project p: 0 of 2 machines in use, 2 kept for job job_ahead ahead of it"
    )
    assert end(scheduler, "x", now_s=100.0) == ["ahead"]
    assert end(scheduler, "ahead", now_s=110.0) == ["behind"]


def test_what_was_kept_of_a_quota_is_free_when_the_promised_job_is_withdrawn() -> None:
    scheduler = make_scheduler(*smalls(2), node("v", node_type="v100-box"), quotas={"p": Quota(machines=2)})
    behind = job("behind", demand(V100=1), create_time_s=2.0, project="p")
    assert arrive(scheduler, gang("x", 2), gang("ahead", 2, at_s=1.0, project="p"), behind) == ["x"]
    scheduler.withdraw("ahead")
    assert arrive(scheduler, now_s=1.0) == ["behind"]


@pytest.mark.parametrize("how", ["limit", "other job", "other promise", "resumed"])
def test_nothing_is_kept_for_a_job_that_its_quota_holds_back_by_now(how: str) -> None:
    scheduler = make_scheduler(*smalls(2), node("v", node_type="v100-box"), quotas={"p": Quota(machines=2)})
    arrive(scheduler, gang("x", 1, hold_s=100.0), gang("ahead", 2, at_s=1.0, project="p"))
    assert arrive(scheduler, gang("y", 1, at_s=2.0, hold_s=500.0)) == []
    other = job("other", demand(V100=1), priority=1, project="p")
    if how == "limit":
        scheduler.set_quotas({"p": Quota(machines=1)})
    elif how == "other job":
        scheduler.enqueue(other)
    elif how == "other promise":
        scheduler.add_running(job("z", demand(V100=4)), nodes=("v",), until_s=900.0)
        scheduler.enqueue(other)
    else:
        scheduler.add_running(other, nodes=("v",), until_s=900.0)
    assert "y" in arrive(scheduler, now_s=1.0)
    assert start_by(scheduler, "ahead") is None
    assert reason(scheduler, "ahead").startswith("quota of project p: ")


def test_quotas_come_and_go_for_jobs_that_wait() -> None:
    scheduler = make_scheduler(*smalls(2))
    arrive(scheduler, gang("x", 2), gang("a", 1, at_s=1.0, project="p"), gang("b", 1, at_s=2.0, project="p"))
    scheduler.set_quotas({"p": Quota(machines=1)})
    assert end(scheduler, "x", now_s=1.0) == ["a"]
    scheduler.set_quotas({})
    assert arrive(scheduler, now_s=2.0) == ["b"]


def test_a_project_that_is_held_starts_nothing_and_keeps_nobody_waiting_until_it_is_let_go() -> None:
    scheduler = make_scheduler(*smalls(2), quotas={"p": Quota()})
    arrive(scheduler, gang("x", 1, hold_s=100.0), gang("ahead", 2, at_s=1.0, project="p"))
    assert start_by(scheduler, "ahead") == 100.0
    assert arrive(scheduler, gang("y", 1, at_s=2.0, hold_s=500.0)) == []
    scheduler.hold_projects({"p": "it has spent its $1"})
    assert arrive(scheduler, now_s=1.0) == ["y"], "what was promised to a job that may not start is free"
    assert start_by(scheduler, "ahead") is None
    assert end(scheduler, "x", now_s=2.0) == end(scheduler, "y", now_s=3.0) == []
    assert reason(scheduler, "ahead") == "it has spent its $1"
    scheduler.hold_projects({})
    assert arrive(scheduler, now_s=5.0) == ["ahead"]
