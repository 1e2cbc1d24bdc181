"""The least time of a step, checked by hand."""

import pytest

from lockstep.planning.chips import CHIPS
from lockstep.planning.hlo import Collective
from lockstep.planning.measurement import Work
from lockstep.planning.roofline import floor


def work(**changes):
    quiet = {"operations": 0.0, "xla_operations": 0.0, "xla_bytes": 0.0, "state_bytes": 0, "collectives": ()}
    return Work(**{**quiet, **changes})


def test_each_bound_by_hand():
    sent = Collective(kind="all-reduce", group_size=8, count=1, payload_bytes=0, sent_bytes=200 * 10**6)
    found = floor(
        work(operations=197e9, state_bytes=819 * 10**6, xla_bytes=819e7, collectives=(sent, sent)), chip=CHIPS["v5e"]
    )
    assert found.compute_s == pytest.approx(1e-3)
    assert found.memory_s == pytest.approx(1e-3)
    assert found.interconnect_s == pytest.approx(2e-3)
    assert found.xla_memory_s == pytest.approx(1e-2)
    assert (found.step_s, found.bound_by) == (found.interconnect_s, "interconnect")


@pytest.mark.parametrize(("changes", "bound"), [({"operations": 1e15}, "compute"), ({"state_bytes": 10**12}, "memory")])
def test_the_slowest_part_bounds(changes, bound):
    found = floor(work(**changes), chip=CHIPS["v6e"])
    assert found.bound_by == bound
    assert found.step_s == max(found.compute_s, found.memory_s, found.interconnect_s) > 0
