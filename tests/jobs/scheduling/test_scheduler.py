"""Who starts, who waits, and what those who wait are told."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import pytest
from tests.jobs.scheduling.simulated import Simulation, demand, job, make_scheduler, node, started

from lockstep.errors import ConfigError, ConflictError, NotFoundError
from lockstep.jobs.scheduling import NodeSpec, QueuedJob, Quota, Scheduler

SMALL = demand(vcpus=4)
"""A replica that takes all vCPUs of a small node."""


def smalls(number: int) -> list[NodeSpec]:
    return [node(f"s{position}") for position in range(number)]


def arrive(scheduler: Scheduler, *jobs: QueuedJob, now_s: float = 0.0) -> list[str]:
    """Puts jobs into the queue; returns who starts."""
    for new in jobs:
        scheduler.enqueue(new)
    return started(scheduler.decide(now_s=now_s))


def end(scheduler: Scheduler, *uids: str, now_s: float) -> list[str]:
    """Ends jobs; returns who starts."""
    for uid in uids:
        scheduler.end(uid)
    return started(scheduler.decide(now_s=now_s))


def gang(uid: str, count: int, *, at_s: float = 0.0, **others: object) -> QueuedJob:
    return job(uid, demand(count, vcpus=4, name="small"), create_time_s=at_s, **others)  # type: ignore[arg-type]


def reason(scheduler: Scheduler, uid: str) -> str:
    return scheduler.explain(uid).reason


def start_by(scheduler: Scheduler, uid: str) -> float | None:
    return scheduler.explain(uid).start_by_s


# The order.


def test_the_higher_priority_is_first_then_who_came_first() -> None:
    jobs = [
        gang("old", 1, at_s=1.0),
        gang("new", 1, at_s=2.0),
        gang("first", 1, at_s=9.0, priority=7),
        gang("second", 1, at_s=9.5, priority=7),
        gang("tie-a", 1, at_s=5.0),
        gang("tie-b", 1, at_s=5.0),
    ]
    for order in itertools.permutations(jobs):
        scheduler = make_scheduler(*smalls(6))
        assert arrive(scheduler, *order, now_s=10.0) == ["first", "second", "old", "new", "tie-a", "tie-b"]


def test_all_of_a_gang_starts_or_none_of_it() -> None:
    scheduler = make_scheduler(*smalls(3))
    assert arrive(scheduler, gang("g", 4)) == []
    scheduler.add_node(node("s3"))
    (start,) = scheduler.decide(now_s=1.0).starts
    assert (start.job.uid, sorted(start.nodes)) == ("g", ["s0", "s1", "s2", "s3"])


def test_the_nodes_are_those_of_the_replicas_in_the_order_of_the_demands() -> None:
    scheduler = make_scheduler(*smalls(2), node("v", node_type="v100-box"), node("b", node_type="big"))
    parts = (demand(1, vcpus=1), demand(2, V100=2, vcpus=8), demand(1, "big", vcpus=16), demand(1, vcpus=4))
    scheduler.enqueue(job("g", *parts))
    (start,) = scheduler.decide(now_s=0.0).starts
    assert start.nodes[1:4] == ("v", "v", "b")
    assert {start.nodes[0], start.nodes[4]} == {"s0", "s1"}


def test_replicas_without_accelerators_wait_rather_than_take_accelerator_nodes() -> None:
    scheduler = make_scheduler(*smalls(1), node("v", node_type="v100-box"))
    assert arrive(scheduler, gang("a", 1)) == ["a"]
    assert arrive(scheduler, gang("b", 1)) == []
    assert arrive(scheduler, job("named", demand(1, "v100-box", vcpus=4))) == ["named"]
    assert arrive(scheduler, job("large", demand(1, vcpus=8))) == ["large"], "no other node would ever hold it"


# Promises, and who goes past.


def test_who_ends_in_time_or_leaves_what_was_promised_goes_past() -> None:
    scheduler = make_scheduler(*smalls(4))
    arrive(scheduler, job("x", demand(2, vcpus=2, gib=4), hold_s=100.0), gang("y", 1, hold_s=500.0))
    assert arrive(scheduler, job("head", demand(2, vcpus=3, gib=4), hold_s=100.0)) == ["head"]
    assert arrive(scheduler, gang("promised", 3, at_s=1.0)) == []
    assert start_by(scheduler, "promised") == 100.0
    late = job("late", demand(1, vcpus=1, gib=1), create_time_s=2.0, hold_s=101.0)
    early = job("early", demand(1, vcpus=1, gib=1), create_time_s=3.0, hold_s=100.0)
    slim = job("slim", demand(1, gib=2), create_time_s=4.0, hold_s=9999.0)
    assert arrive(scheduler, late, early, slim) == ["early", "slim"]
    assert reason(scheduler, "late") == "the machines are kept for job job_promised, which is ahead of it"
    assert end(scheduler, "x", "head", "early", now_s=100.0) == ["promised"]


def test_what_can_be_spared_is_spared_once() -> None:
    scheduler = make_scheduler(node("b", node_type="big"))
    arrive(scheduler, job("x", demand(1, vcpus=8), hold_s=100.0))
    arrive(scheduler, job("promised", demand(1, vcpus=12), create_time_s=1.0))
    tails = [job(f"t{number}", demand(1, vcpus=1), create_time_s=2.0 + number, hold_s=500.0) for number in range(8)]
    assert arrive(scheduler, *tails) == ["t0", "t1", "t2", "t3"]
    assert end(scheduler, "x", now_s=100.0) == ["promised"]


def test_both_parts_of_a_gang_count_against_what_can_be_spared() -> None:
    scheduler = make_scheduler(node("b", node_type="big"))
    arrive(scheduler, job("x", demand(1, vcpus=8), hold_s=100.0))
    arrive(scheduler, job("promised", demand(1, vcpus=12), create_time_s=1.0))
    two = (demand(2, vcpus=1), demand(1, vcpus=2))
    assert arrive(scheduler, job("a", *two, demand(1, vcpus=1, gib=1), create_time_s=2.0, hold_s=500.0)) == []
    assert arrive(scheduler, job("b", *two, create_time_s=3.0, hold_s=500.0)) == ["b"]
    assert arrive(scheduler, job("c", demand(1, vcpus=1), create_time_s=3.0, hold_s=500.0)) == []


def test_each_group_of_node_types_has_a_promise() -> None:
    scheduler = make_scheduler(*smalls(2), node("v", node_type="v100-box"), node("h", node_type="h100-box"))
    arrive(scheduler, gang("s", 2), job("v", demand(V100=3)), job("h", demand(H100=2)))
    waiting = [gang("s2", 2, at_s=1.0), job("v2", demand(V100=2), create_time_s=1.0)]
    arrive(scheduler, *waiting, gang("s3", 1, at_s=2.0))
    assert [start_by(scheduler, uid) for uid in ("s2", "v2", "s3")] == [100.0, 100.0, None]


def test_a_promise_comes_nearer_when_jobs_end_early() -> None:
    scheduler = make_scheduler(*smalls(3))
    arrive(scheduler, gang("a", 1, hold_s=1000.0), gang("b", 1, hold_s=6000.0), gang("c", 1, hold_s=7000.0))
    arrive(scheduler, gang("g", 2, at_s=1.0))
    assert start_by(scheduler, "g") == 6000.0
    end(scheduler, "b", now_s=20.0)
    assert start_by(scheduler, "g") == 6000.0, "it is not looked for at every step"
    end(scheduler, now_s=100.0)
    assert start_by(scheduler, "g") == 1000.0
    assert end(scheduler, "c", now_s=101.0) == ["g"]


def test_who_comes_with_a_higher_priority_goes_first_and_the_promise_is_made_anew() -> None:
    scheduler = make_scheduler(*smalls(3))
    arrive(scheduler, gang("x", 2, hold_s=100.0))
    arrive(scheduler, gang("g", 2, at_s=1.0))
    assert start_by(scheduler, "g") == 100.0
    assert arrive(scheduler, gang("up", 1, at_s=2.0, priority=1, hold_s=300.0)) == ["up"]
    assert start_by(scheduler, "g") == 100.0, "its nodes are others than those of g"
    assert arrive(scheduler, gang("up2", 2, at_s=3.0, priority=1, hold_s=300.0)) == []
    assert (start_by(scheduler, "g"), start_by(scheduler, "up2")) == (None, 100.0)
    assert end(scheduler, "x", now_s=50.0) == ["up2"]
    assert start_by(scheduler, "g") == 350.0


def test_who_is_ahead_breaks_the_promise_of_who_is_behind() -> None:
    scheduler = make_scheduler(*smalls(3))
    arrive(scheduler, gang("x", 2, hold_s=100.0))
    arrive(scheduler, gang("g", 3, at_s=1.0))
    assert start_by(scheduler, "g") == 100.0
    assert arrive(scheduler, gang("up", 1, at_s=2.0, priority=1, hold_s=300.0)) == ["up"]
    assert start_by(scheduler, "g") == 300.0
    assert arrive(scheduler, gang("past", 1, at_s=3.0, hold_s=301.0)) == []
    assert end(scheduler, "x", now_s=50.0) == []
    assert arrive(scheduler, gang("past2", 1, at_s=3.0, hold_s=250.0), now_s=50.0) == ["past2"]


def test_nothing_is_said_of_a_time_that_who_is_ahead_may_still_take() -> None:
    scheduler = make_scheduler(*smalls(2), node("b", node_type="big"))
    arrive(scheduler, gang("x", 2, hold_s=100.0), job("y", demand(1, "big", vcpus=16), hold_s=500.0))
    any_node = demand(2, "small", "big", vcpus=4, gib=4)
    first = job("first", demand(2, "small", vcpus=4), create_time_s=1.0)
    arrive(scheduler, first, job("second", any_node, create_time_s=2.0, hold_s=900.0))
    arrive(scheduler, job("third", demand(1, "big", vcpus=16), create_time_s=3.0))
    assert [start_by(scheduler, uid) for uid in ("first", "second", "third")] == [100.0, None, None]
    late = job("late", demand(1, "big", vcpus=1), create_time_s=4.0, hold_s=9999.0)
    assert arrive(scheduler, late) == [], "the nodes are kept for the third all the same"
    assert end(scheduler, "y", now_s=50.0) == ["second"]
    assert start_by(scheduler, "third") == 950.0


def test_nothing_is_said_of_a_time_at_which_who_is_ahead_may_have_used_the_quota() -> None:
    scheduler = make_scheduler(*smalls(2), node("v", node_type="v100-box"), quotas={"p": Quota(machines=2)})
    arrive(scheduler, gang("x", 2, hold_s=100.0), job("y", demand(V100=4), hold_s=50.0))
    arrive(scheduler, gang("first", 2, at_s=1.0), gang("second", 2, at_s=2.0, project="p"))
    arrive(scheduler, job("third", demand(V100=2), create_time_s=3.0, project="p"))
    assert [start_by(scheduler, uid) for uid in ("first", "second", "third")] == [100.0, None, None]
    scheduler.withdraw("second")
    assert start_by(scheduler, "third") == 50.0


def test_somebody_holds_machines_for_longer_than_was_said() -> None:
    scheduler = make_scheduler(*smalls(2))
    arrive(scheduler, gang("x", 1, hold_s=100.0), gang("y", 1, hold_s=120.0))
    arrive(scheduler, gang("g", 1, at_s=1.0))
    assert start_by(scheduler, "g") == 100.0
    assert arrive(scheduler, now_s=101.0) == []
    assert start_by(scheduler, "g") == 161.0
    assert end(scheduler, "y", now_s=120.0) == ["g"]
    arrive(scheduler, gang("h", 1, at_s=2.0), now_s=200.0)
    assert start_by(scheduler, "h") == 260.0
    scheduler = make_scheduler(*smalls(1))
    arrive(scheduler, gang("x", 1, hold_s=100.0))
    arrive(scheduler, gang("i", 1, at_s=1.0), now_s=100.0)
    assert start_by(scheduler, "i") == 160.0, "whoever is due this moment has not ended yet"


def test_a_gang_of_several_parts_starts_as_it_was_promised_where_the_tightest_fit_fails() -> None:
    sizes = {"a": (7, 8), "b": (8, 8), "c": (6, 5)}
    scheduler = make_scheduler(*(node(name, resources={"vcpus": v, "gib": g}) for name, (v, g) in sizes.items()))
    scheduler.enqueue(job("x", demand(1, vcpus=7)))
    assert scheduler.decide(now_s=0.0).starts[0].nodes == ("a",)
    parts = (demand(2, vcpus=2, gib=5), demand(2, vcpus=4, gib=2))
    assert arrive(scheduler, job("g", *parts, create_time_s=1.0)) == []
    assert start_by(scheduler, "g") == 100.0
    assert arrive(scheduler, job("past", demand(1, vcpus=4, gib=2), create_time_s=2.0, hold_s=500.0)) == ["past"]
    assert end(scheduler, "x", now_s=100.0) == ["g"]


def test_a_gang_that_fits_in_no_simple_way_starts_when_its_nodes_are_empty() -> None:
    scheduler = make_scheduler(node("a", node_type="big"), node("b", node_type="big"))
    parts = (demand(2, vcpus=8, gib=8), demand(5, vcpus=2, gib=8))  # both large ones on one node waste its memory
    assert scheduler.why_unplaceable(job("g", *parts)) is None
    assert arrive(scheduler, job("g", *parts)) == ["g"]
    assert arrive(scheduler, job("h", *parts, create_time_s=1.0)) == []
    assert start_by(scheduler, "h") == 100.0
    assert end(scheduler, "g", now_s=50.0) == ["h"]
    assert scheduler.why_unplaceable(job("i", parts[0], demand(7, vcpus=2, gib=8))) is not None


def test_who_could_not_have_all_that_it_was_promised_yet_takes_nothing_of_it() -> None:
    scheduler = make_scheduler(node("b", node_type="big"), node("s"))
    arrive(scheduler, job("x", demand(1, vcpus=16), hold_s=50.0), job("y", demand(1, "small", vcpus=4), hold_s=100.0))
    assert arrive(scheduler, job("g", demand(1, vcpus=12, gib=32), demand(1, vcpus=4, gib=1), create_time_s=1.0)) == []
    assert start_by(scheduler, "g") == 100.0
    assert end(scheduler, "x", now_s=50.0) == []
    past = job("past", demand(1, vcpus=16), create_time_s=2.0, hold_s=50.0)
    assert arrive(scheduler, past, now_s=50.0) == ["past"]
    assert end(scheduler, "past", "y", now_s=100.0) == ["g"]


# Nodes that come and go.


def test_a_job_that_waits_goes_to_accelerator_nodes_when_the_last_other_node_goes() -> None:
    scheduler = make_scheduler(*smalls(1), node("v", node_type="v100-box"))
    arrive(scheduler, gang("a", 1), gang("b", 1, at_s=1.0))
    scheduler.remove_node("s0")
    assert arrive(scheduler, now_s=1.0) == ["b"]


def test_a_job_leaves_accelerator_nodes_when_another_node_comes() -> None:
    scheduler = make_scheduler(node("v", node_type="v100-box"))
    arrive(scheduler, job("a", demand(V100=4, vcpus=13)), gang("b", 2, at_s=1.0))
    assert start_by(scheduler, "b") == 100.0
    scheduler.add_node(node("s"))
    assert reason(scheduler, "b") == "1 of 2 small: the cluster's maximum is 1"
    assert start_by(scheduler, "b") is None
    assert arrive(scheduler, job("c", demand(1, "v100-box", vcpus=3), create_time_s=2.0, hold_s=999.0)) == ["c"]


def test_a_lost_node_takes_its_promise_with_it() -> None:
    scheduler = make_scheduler(*smalls(3))
    arrive(scheduler, gang("x", 2, hold_s=100.0), gang("y", 1, hold_s=300.0), gang("g", 2, at_s=1.0))
    assert start_by(scheduler, "g") == 100.0
    scheduler.remove_node("s0")
    assert arrive(scheduler, now_s=1.0) == []
    assert start_by(scheduler, "g") == 300.0
    assert end(scheduler, "x", "y", now_s=100.0) == ["g"]


def test_a_node_that_comes_back_is_held_by_who_still_holds_it() -> None:
    scheduler = make_scheduler(*smalls(2))
    arrive(scheduler, job("x", demand(2, vcpus=3), hold_s=100.0))
    scheduler.remove_node("s0")
    scheduler.remove_node("s1")
    scheduler.add_node(node("s0", node_type="big"))
    assert arrive(scheduler, job("y", demand(1, vcpus=14), create_time_s=1.0), now_s=1.0) == []
    assert start_by(scheduler, "y") == 100.0
    assert end(scheduler, "x", now_s=50.0) == ["y"]
    scheduler.add_node(node("s1"))
    assert arrive(scheduler, gang("z", 1), now_s=51.0) == ["z"], "who has ended holds nothing of what comes back"


def test_a_node_changes_under_a_job() -> None:
    scheduler = make_scheduler(*smalls(1))
    arrive(scheduler, gang("x", 1))
    scheduler.replace_node(node("s0", resources={"vcpus": 3, "gib": 8}))
    assert arrive(scheduler, job("y", demand(1, vcpus=1), create_time_s=1.0), now_s=1.0) == []
    scheduler.replace_node(node("s0", node_type="big"))
    assert arrive(scheduler, now_s=2.0) == ["y"]
    assert arrive(scheduler, job("z", demand(1, vcpus=12), create_time_s=2.0), now_s=2.0) == []
    assert end(scheduler, "x", now_s=3.0) == ["z"]


def test_a_node_cannot_become_what_does_not_count() -> None:
    scheduler = make_scheduler(*smalls(1))
    with pytest.raises(ConfigError, match="received 'tpus'"):
        scheduler.replace_node(node("s0", resources={"tpus": 3}))
    with pytest.raises(NotFoundError, match="no node 's1' is known"):
        scheduler.replace_node(node("s1"))
    with pytest.raises(NotFoundError, match="no node 's1' is known"):
        scheduler.remove_node("s1")
    assert arrive(scheduler, gang("x", 1)) == ["x"]


def test_nodes_that_are_down_are_brought_up_only_when_they_are_needed() -> None:
    scheduler = make_scheduler(node("a", is_up=False), node("b", node_type="big"))
    scheduler.enqueue(gang("x", 1))
    assert scheduler.decide(now_s=0.0).starts[0].nodes == ("b",)
    scheduler.replace_node(node("a"))
    scheduler.enqueue(gang("y", 1))
    assert scheduler.decide(now_s=0.0).starts[0].nodes == ("a",)


# What runs already.


def test_another_scheduler_takes_over() -> None:
    scheduler = make_scheduler(*smalls(3), quotas={"p": Quota(machines=1)})
    scheduler.add_running(gang("x", 2), nodes=("s0", "s1"), until_s=70.0)
    scheduler.add_running(gang("p1", 1, project="p"), nodes=("gone",), until_s=70.0)
    with pytest.raises(ConflictError, match="job job_x is already queued or running"):
        scheduler.add_running(gang("x", 2), nodes=("s0", "s1"), until_s=70.0)
    with pytest.raises(ConflictError, match="job job_x is already queued or running"):
        scheduler.enqueue(gang("x", 2))
    assert arrive(scheduler, gang("p2", 1, project="p"), gang("y", 1), gang("z", 2, at_s=1.0)) == ["y"]
    assert reason(scheduler, "p2") == "quota of project p: 1 of 1 machines in use by job job_p1"
    assert start_by(scheduler, "z") == 70.0
    scheduler.add_node(node("gone"))
    assert arrive(scheduler, gang("w", 1, at_s=2.0), now_s=1.0) == [], "the node is back, and held"
    assert sorted(scheduler.running) == ["p1", "x", "y"]
    assert end(scheduler, "x", now_s=70.0) == ["z"]
    assert end(scheduler, "p1", now_s=70.0) == ["p2"]


def test_what_is_resumed_on_a_promised_node_breaks_the_promise() -> None:
    scheduler = make_scheduler(*smalls(2))
    arrive(scheduler, gang("x", 1, hold_s=100.0), gang("g", 2, at_s=1.0))
    assert start_by(scheduler, "g") == 100.0
    scheduler.add_running(gang("late", 1), nodes=("s1",), until_s=900.0)
    arrive(scheduler, now_s=1.0)
    assert start_by(scheduler, "g") == 900.0


def test_more_may_be_resumed_on_a_node_than_it_has() -> None:
    scheduler = make_scheduler(*smalls(1))
    scheduler.add_running(job("x", demand(2, vcpus=3)), nodes=("s0", "s0"), until_s=100.0)
    assert arrive(scheduler, job("y", demand(1, vcpus=1), create_time_s=1.0)) == []
    assert start_by(scheduler, "y") == 100.0
    assert end(scheduler, "x", now_s=100.0) == ["y"]


# What could never run.


def test_what_could_never_run_is_told() -> None:
    scheduler = make_scheduler(*smalls(3), node("v", node_type="v100-box"), quotas={"p": Quota(machines=2)})
    arrive(scheduler, gang("x", 3))
    assert scheduler.why_unplaceable(gang("y", 3)) is None
    assert scheduler.why_unplaceable(gang("y", 4)) == "4 small asked for: the cluster's maximum is 3"
    assert (
        scheduler.why_unplaceable(job("y", demand(1, H100=1, name="h100")))
        == "1 h100 asked for: the cluster's maximum is 0"
    )
    assert scheduler.why_unplaceable(gang("y", 3, project="p")) == "quota of project p: 3 machines asked for, 2 allowed"
    both = (demand(1, V100=3), demand(2, V100=1))
    assert scheduler.why_unplaceable(job("y", *both)) == "each part of the gang fits, but not all of them at once"
    assert scheduler.why_unplaceable(job("y", demand(1, V100=3), demand(1, V100=1), demand(3, vcpus=4))) is None
    with pytest.raises(ConfigError, match="received 'tpus'"):
        scheduler.why_unplaceable(job("y", demand(1, tpus=1)))


def test_a_job_that_needs_what_does_not_count_leaves_no_trace() -> None:
    scheduler = make_scheduler(*smalls(1))
    with pytest.raises(ConfigError, match="received 'tpus'"):
        scheduler.enqueue(job("x", demand(1, tpus=1)))
    assert scheduler.num_queued == 0
    assert arrive(scheduler, gang("x", 1)) == ["x"]


# What is said.


def test_the_words_for_who_waits() -> None:
    a100 = node("a", node_type="a", resources={"V100": 2})
    scheduler = make_scheduler(a100, quotas={"p": Quota(accelerators={"V100": 1})})
    four = demand(4, V100=1, name="a2-highgpu-1g")
    scheduler.enqueue(job("four", four))
    assert reason(scheduler, "four") == "2 of 4 a2-highgpu-1g: the cluster's maximum is 2"
    scheduler.add_node(NodeSpec(name="b", node_type="a", resources={"V100": 3}))
    assert arrive(scheduler, job("x", demand(3, V100=1), priority=1)) == ["x"]
    assert reason(scheduler, "four") == "2 of 4 a2-highgpu-1g are free"
    assert scheduler.explain("four").start_by_s == 100.0
    assert arrive(scheduler, job("y", demand(1, V100=1), hold_s=101.0, project="other", create_time_s=1.0)) == ["y"]
    assert arrive(scheduler, job("z", demand(1, V100=1), hold_s=101.0, project="other", create_time_s=2.0)) == []
    assert reason(scheduler, "z") == "the machines are kept for a job of another project, which is ahead of it"
    assert arrive(scheduler, job("p", demand(1, V100=1), hold_s=9.0, project="p", create_time_s=3.0)) == ["p"]
    arrive(scheduler, job("p2", demand(1, V100=1), project="p", priority=9))
    assert reason(scheduler, "p2") == "quota of project p: 1 of 1 V100 in use by job job_p"
    assert [scheduler.explain(uid).position for uid in ("p2", "four", "z")] == [1, 2, 3]
    with pytest.raises(NotFoundError, match="no job x waits"):
        scheduler.explain("x")


def test_each_part_has_room_and_not_all_at_once() -> None:
    scheduler = make_scheduler(node("b", node_type="big"))
    arrive(scheduler, job("x", demand(1, vcpus=4)))
    arrive(scheduler, job("g", demand(1, vcpus=9), demand(1, vcpus=4), create_time_s=1.0))
    assert reason(scheduler, "g") == "each part of the gang fits, but not all of them at once"
    assert start_by(scheduler, "g") == 100.0


def test_a_job_that_nobody_looked_at_yet_is_not_told_that_it_has_no_room() -> None:
    scheduler = make_scheduler(*smalls(1))
    scheduler.enqueue(gang("x", 1))
    assert reason(scheduler, "x") == "its machines are free: it is considered next"
    arrive(scheduler, gang("y", 1, at_s=1.0))
    scheduler.end("x")
    assert reason(scheduler, "y") == "its machines are free: it is considered next"


def test_of_jobs_that_ask_for_the_same_the_first_is_told_as_refused() -> None:
    scheduler = make_scheduler(*smalls(2))
    arrive(scheduler, gang("x", 1))
    for number, hold_s in enumerate((100.0, 200.0, 50.0)):
        scheduler.enqueue(gang(str(number), 2, at_s=1.0, hold_s=hold_s))
    assert [refusal.uid for refusal in scheduler.decide(now_s=0.0).refusals] == ["0"]


def test_who_is_refused_and_starts_after_all_is_not_told_as_refused() -> None:
    small, big = demand(1, "small", vcpus=4), demand(1, "big", vcpus=16)
    scheduler = make_scheduler(*smalls(2), node("b0", node_type="big"), node("b1", node_type="big"))
    arrive(scheduler, job("s", small, hold_s=1000.0), job("b", big), job("b'", big))
    arrive(scheduler, job("first", small, big, create_time_s=1.0))
    arrive(scheduler, job("second", demand(2, "small", vcpus=4), create_time_s=2.0))
    arrive(scheduler, job("third", small, demand(2, "big", vcpus=16), create_time_s=3.0))
    arrive(scheduler, job("fourth", big, create_time_s=4.0, hold_s=500.0))
    scheduler.end("b")
    scheduler.end("b'")
    # The fourth would have to wait for the third, if the second were not promised one of the third's nodes.
    decisions = scheduler.decide(now_s=10.0)
    assert started(decisions) == ["first", "fourth"]
    assert {refusal.uid for refusal in decisions.refusals} == {"second", "third"}


def test_a_job_that_was_withdrawn_leaves_no_trace() -> None:
    simulation = Simulation(make_scheduler(*smalls(1), quotas={"p": Quota(machines=0)}))
    simulation.enqueue(gang("x", 1, project="p"), gang("y", 2))
    simulation.decide()
    simulation.withdraw("x")
    simulation.withdraw("y")
    simulation.decide()
    simulation.check_no_trace()


# Equal calls.

PROGRAM = """
from lockstep.jobs.scheduling import Demand, NodeSpec, QueuedJob, Scheduler
scheduler = Scheduler(accelerators=(), others=("vcpus",))
for number in range(40):
    scheduler.add_node(NodeSpec(name=f"n{number}", node_type=f"type-{number % 20}", resources={"vcpus": 4}))
for number in range(30):
    demand = Demand(name="", count=1 + number % 3, resources=(("vcpus", 1 + number % 4),))
    job = QueuedJob(uid=str(number), name="", project="", create_time_s=number, demands=(demand,), hold_s=9.0)
    scheduler.enqueue(job)
print([(start.job.uid, start.nodes) for start in scheduler.decide(now_s=0.0).starts])
"""


def test_equal_calls_give_equal_decisions_in_every_process() -> None:
    found = {
        subprocess.run(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1
    assert "'n39'" in found.pop()
