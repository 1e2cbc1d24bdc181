"""What a node was for while it cost."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.jobs.billing.node_costs import NodeShare, NodeUse, split_node
from lockstep.jobs.provisioning import NodeRecord

US = 10**6


def node(**changes: object) -> NodeRecord:
    times: dict[str, object] = {"up_time_s": 100.0, "ready_time_s": 130.0, "down_time_s": 1000.0, **changes}
    return NodeRecord(
        name="n",
        slot="cpu-0",
        node_type="cpu",
        asked_for="asker",
        asked_time_s=90.0,
        usd_per_hour="0.36",
        **times,  # pyright: ignore[reportArgumentType]  # the times of the case
    )


def use(job: str, start_s: float, end_s: float, *, vcpus: int = 4) -> NodeUse:
    return NodeUse(job=job, machine="n", vcpus=vcpus, start_us=int(start_s * US), end_us=int(end_s * US))


def shown(record: NodeRecord, *uses: NodeUse, now_s: float = 2000.0) -> list[tuple[str, str | None, float, str]]:
    return [
        (piece.share.value, piece.job, (piece.end_us - piece.start_us) / US, str(piece.part))
        for piece in split_node(record, uses=uses, now_s=now_s)
    ]


def test_a_node_comes_up_runs_a_job_and_is_kept_for_a_while() -> None:
    assert shown(node(), use("a", 150, 750)) == [
        ("provisioning", "asker", 30.0, "1"),
        ("idle", "asker", 20.0, "1"),
        ("used", "a", 600.0, "1"),
        ("idle", "a", 250.0, "1"),
    ]
    pieces = list(split_node(node(), uses=[use("a", 150, 750)], now_s=2000.0))
    assert sum(piece.cost_usd or 0 for piece in pieces) == Fraction(9, 100)  # 900 s at $0.36 an hour


def test_who_shares_a_node_pays_by_vcpus() -> None:
    record = node(down_time_s=500.0)
    assert shown(record, use("a", 130, 330, vcpus=8), use("b", 230, 430), use("b", 230, 430)) == [
        ("provisioning", "asker", 30.0, "1"),
        ("used", "a", 100.0, "1"),
        ("used", "a", 100.0, "1/2"),
        ("used", "b", 100.0, "1/2"),
        ("used", "b", 100.0, "1"),
        ("idle", "b", 70.0, "1"),
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        pytest.param({"up_time_s": None, "ready_time_s": None}, [], id="never up"),
        pytest.param(
            {"ready_time_s": None, "failed_time_s": 400.0},
            [("failed", "asker", 300.0), ("failed", "asker", 600.0)],
            id="never joined",
        ),
        pytest.param(
            {"failed_time_s": 400.0},
            [("provisioning", "asker", 30.0), ("idle", "asker", 270.0), ("failed", "asker", 600.0)],
            id="left the engine",
        ),
        pytest.param(
            {"ready_time_s": None, "down_time_s": None}, [("provisioning", "asker", 1900.0)], id="still coming up"
        ),
        pytest.param({"down_time_s": 50.0}, [], id="a clock that was set back"),
    ],
)
def test_what_was_not_used(changes: dict[str, object], expected: list[tuple[str, str, float]]) -> None:
    assert [piece[:3] for piece in shown(node(**changes))] == expected


def test_an_unpriced_node_has_no_cost() -> None:
    unpriced = NodeRecord(name="n", slot="s", node_type="t", asked_time_s=0.0, up_time_s=0.0)
    assert [piece.cost_usd for piece in split_node(unpriced, uses=[], now_s=9.0)] == [None]


TIMES = st.one_of(st.none(), st.floats(0, 2000))
USES = st.builds(
    lambda job, start_us, length_us, vcpus: NodeUse(
        job=job, machine="n", vcpus=vcpus, start_us=start_us, end_us=start_us + length_us
    ),
    st.sampled_from(["a", "b", "c"]),
    st.integers(0, 2000 * US),
    st.integers(-5, 900 * US),
    st.integers(1, 96),
)


@given(up_s=st.floats(0, 2000), times=st.tuples(TIMES, TIMES, TIMES), uses=st.lists(USES, max_size=6))
def test_the_parts_are_always_the_whole(
    up_s: float, times: tuple[float | None, float | None, float | None], uses: list[NodeUse]
) -> None:
    ready_s, failed_s, down_s = times
    record = node(up_time_s=up_s, ready_time_s=ready_s, failed_time_s=failed_s, down_time_s=down_s)
    pieces = list(split_node(record, uses=uses, now_s=2500.0))
    start_us, end_us = round(up_s * US), round((2500.0 if down_s is None else down_s) * US)
    whole = Fraction(max(0, end_us - start_us), 3600 * US)
    assert sum((piece.hours for piece in pieces), Fraction(0)) == whole
    moments = [(piece.start_us, piece.end_us) for piece in pieces]
    assert moments == sorted(moments)
    if pieces:
        spans = sorted(set(moments))
        assert (spans[0][0], spans[-1][1]) == (start_us, end_us)
        assert all(before[1] == after[0] for before, after in itertools.pairwise(spans))
    used = {piece.job for piece in pieces if piece.share is NodeShare.USED}
    assert used <= {use.job for use in uses}
