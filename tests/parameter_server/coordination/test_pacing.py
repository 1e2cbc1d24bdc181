"""A worker is never more than so many steps ahead of the slowest one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.parameter_server.coordination.pacing import Pace


@given(st.integers(0, 3), st.lists(st.sampled_from(["a", "b", "c"]), max_size=60), st.data())
def test_the_lead_is_bounded_and_the_slowest_never_waits(max_lead: int, order: list[str], data: st.DataObject) -> None:
    pace = Pace(max_lead=max_lead)
    steps = dict.fromkeys("abc", 0)
    for worker in steps:
        pace.add(worker)
    for worker in order:
        num_steps = data.draw(st.integers(1, max_lead + 1))
        is_behind = steps[worker] + num_steps - 1 - min(steps.values()) <= max_lead
        assert pace.may_begin(worker, num_steps) is is_behind
        if is_behind:
            pace.begin(worker, num_steps)
            pace.end(worker, num_steps)
            steps[worker] += num_steps
    assert pace.may_begin(min(steps, key=lambda worker: steps[worker]))


@pytest.mark.parametrize("max_lead", [0, 2])
def test_nobody_waits_for_who_has_gone_and_who_comes_begins_with_the_slowest(max_lead: int) -> None:
    pace = Pace(max_lead=max_lead)
    pace.add("slow")
    pace.add("fast")
    while pace.may_begin("fast"):
        pace.begin("fast")
        pace.end("fast")
    pace.remove("slow")
    assert pace.may_begin("fast")
    pace.add("new")
    assert pace.may_begin("new")
    assert pace.may_begin("fast")


def test_without_a_bound_nobody_waits() -> None:
    pace = Pace()
    pace.add("a")
    pace.add("b")
    for _ in range(100):
        assert pace.may_begin("a")
        pace.begin("a")
        pace.end("a")
