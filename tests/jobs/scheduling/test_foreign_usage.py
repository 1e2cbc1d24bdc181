"""What others use of nodes that are not a service's alone."""

from __future__ import annotations

import math

from tests.jobs.scheduling.simulated import demand, job, make_scheduler, node, started

from lockstep.jobs.scheduling import ForeignUsage, QueuedJob, describe_foreign_usage

EIGHT = {"box": {"vcpus": 8, "memory_mib": 30_000}}


def test_what_is_not_ones_own_is_others() -> None:
    used = {"box": {"vcpus": 7, "memory_mib": 1000}, "idle": {"vcpus": 0}, "ours": {"vcpus": 4}}
    own = {"box": {"vcpus": 4, "memory_mib": 1000}, "ours": {"vcpus": 4}}
    assert ForeignUsage().observe(used, own=own, now_s=0.0) == {"box": {"vcpus": 3}}


def test_a_job_that_has_just_started_or_ended_is_no_stranger_and_hides_none() -> None:
    usage = ForeignUsage()
    busy, ours = {"box": {"vcpus": 4}}, {"box": {"vcpus": 4}}
    for tenth in range(40):
        usage.observe(busy, own={}, now_s=tenth / 10)
    assert usage.observe(busy, own=ours, now_s=4.1) == {"box": {"vcpus": 4}}, "it is placed, and not shown yet"
    for tenth in range(50, 90):
        usage.observe({"box": {"vcpus": 8}}, own=ours, now_s=tenth / 10)
    assert usage.observe({"box": {"vcpus": 8}}, own={}, now_s=9.1) == {"box": {"vcpus": 4}}, "it ended just now"


def test_who_comes_and_goes_is_seen_soon() -> None:
    usage = ForeignUsage()
    for second in range(3):
        assert usage.observe({"box": {"vcpus": 0}}, own={}, now_s=float(second)) == {}
    seen = [usage.observe({"box": {"vcpus": 2}}, own={}, now_s=3.0 + second) for second in range(4)]
    assert seen[-1] == {"box": {"vcpus": 2}}
    assert usage.observe({}, own={}, now_s=7.0) == {}, "its node is gone"


def test_a_clock_that_is_set_back_keeps_nothing_of_before() -> None:
    usage = ForeignUsage()
    for second in range(1000, 1004):
        usage.observe({"box": {"vcpus": 8}}, own={}, now_s=float(second))
    assert usage.observe({"box": {"vcpus": 0}}, own={}, now_s=10.0) == {}


def test_it_is_said_in_words() -> None:
    assert describe_foreign_usage({}, totals=EIGHT) == ""
    others = {"box": {"vcpus": 4, "memory_mib": 15_360}, "other": {"NVIDIA_H100_80GB": 1}}
    totals = {**EIGHT, "other": {"NVIDIA_H100_80GB": 8, "vcpus": 8}}
    said = "others use 4 of 16 vCPUs, 15,360 of 30,000 MiB of memory, 1 of 8 NVIDIA_H100_80GB"
    assert describe_foreign_usage(others, totals=totals) == said


def test_no_promise_counts_on_what_nobody_knows_the_end_of() -> None:
    scheduler = make_scheduler(node("s0"), node("s1"))

    def gang(uid: str, count: int, *, at_s: float = 0.0) -> QueuedJob:
        return job(uid, demand(count, vcpus=4, name="small"), create_time_s=at_s)

    scheduler.add_running(gang("stranger", 1), nodes=["s0"], until_s=math.inf)
    scheduler.enqueue(gang("pair", 2))
    scheduler.enqueue(gang("small", 1, at_s=1.0))
    assert started(scheduler.decide(now_s=0.0)) == ["small"], "nobody knows whom it delays"
    waits = scheduler.explain("pair")
    assert (waits.reason, waits.start_by_s) == ("0 of 2 small are free", None)
    scheduler.end("stranger")
    for now_s in (10.0, 50.0):
        assert started(scheduler.decide(now_s=now_s)) == []
    assert scheduler.explain("pair").start_by_s == 100.0, "the promise is looked at again: by now it has an end"
    scheduler.end("small")
    assert started(scheduler.decide(now_s=60.0)) == ["pair"]
