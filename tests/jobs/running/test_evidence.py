"""When something ended that nobody recorded."""

from __future__ import annotations

import pytest

from lockstep.jobs.running.evidence import EndBounds, ReplicaEvidence, billable_until_s, bound_end

START, NOW = 1_000.0, 90_000.0


def _ended(time_s: float, name: str = "m") -> ReplicaEvidence:
    return ReplicaEvidence(name=name, ended_time_s=time_s)


def _seen(name: str = "m", *, known_gone_time_s: float | None = None, **signs: float) -> ReplicaEvidence:
    return ReplicaEvidence(
        name=name, signs={f"a {kind}": time_s for kind, time_s in signs.items()}, known_gone_time_s=known_gone_time_s
    )


@pytest.mark.parametrize(
    ("replicas", "expected"),
    [
        ([_ended(1_005.0)], (1_005.0, 1_005.0, "")),
        ([_ended(1_005.0), _ended(1_007.0, "w")], (1_007.0, 1_007.0, "")),
        ([_seen(log=1_005.0)], (1_005.0, NOW, "a log of m")),
        ([_seen(log=1_005.0, report=1_004.0, sample=1_006.0)], (1_006.0, NOW, "a sample of m")),
        ([_seen(log=1_005.0), _seen("w", log=1_003.0)], (1_005.0, NOW, "a log of m")),
        ([_seen(log=1_005.0, known_gone_time_s=1_010.0)], (1_005.0, 1_010.0, "a log of m")),
        ([_seen(log=1_005.0, known_gone_time_s=1_005.0)], (1_005.0, 1_005.0, "")),
        ([_ended(1_009.0), _seen("w", log=1_003.0)], (1_009.0, NOW, "the end of m")),
        ([_ended(1_009.0), _seen("w", log=1_003.0, known_gone_time_s=1_008.0)], (1_009.0, 1_009.0, "")),
        ([_seen("w", log=1_020.0), _ended(1_009.0)], (1_020.0, NOW, "a log of w")),
        ([_ended(1_009.0), _seen("never started")], (1_009.0, 1_009.0, "")),
        ([_seen("nothing known")], (START, NOW, "its start")),
        ([_seen("nothing known", known_gone_time_s=2_000.0)], (START, 2_000.0, "its start")),
        ([], (START, NOW, "its start")),
        ([_seen(log=900.0)], (START, NOW, "a log of m")),
        ([_seen(log=NOW + 50.0)], (NOW, NOW, "")),
        ([_ended(900.0)], (START, START, "")),
    ],
    ids=[
        "recorded",
        "all recorded: the last one",
        "a line of its log",
        "the last of several signs",
        "the last of several replicas",
        "gone by a reboot",
        "gone at its last sign",
        "one recorded, another not",
        "one recorded, another gone before",
        "one recorded, another heard of later",
        "one that never started does not count",
        "no sign since its start",
        "no sign, and gone by a reboot",
        "no replica",
        "a sign of before the start: a clock that was set",
        "a sign of after now: a clock that is ahead",
        "an end of before the start",
    ],
)
def test_an_end_lies_between_the_last_sign_and_the_first_moment_that_it_was_known(
    replicas: list[ReplicaEvidence], expected: tuple[float, float, str]
) -> None:
    earliest_s, latest_s, sign = expected
    found = bound_end(replicas, started_s=START, now_s=NOW)
    assert found == EndBounds(earliest_s=earliest_s, latest_s=latest_s, sign=sign)
    assert found.is_known == (earliest_s == latest_s)


def test_how_late_somebody_looks_changes_nothing_of_what_is_billed() -> None:
    signs = [_seen(log=1_005.0, report=1_004.0)]
    ends = {bound_end(signs, started_s=START, now_s=now_s).earliest_s for now_s in (1_006.0, 2_000.0, NOW, 10 * NOW)}
    assert ends == {1_005.0}


def test_both_ends_are_said_and_which_one_is_billed() -> None:
    found = bound_end([_seen("master-replica-0", log=1_005.25)], started_s=START, now_s=NOW)
    assert found.describe() == (
        "it ended between 1970-01-01T00:16:45.250Z (a log of master-replica-0) and 1970-01-02T01:00:00.000Z,"
        " and is billed until the first time"
    )
    assert bound_end([_ended(1_005.0)], started_s=START, now_s=NOW).describe() == ""


@pytest.mark.parametrize(
    ("signs", "expected"),
    [([], NOW), ([NOW - 1.0], NOW), ([NOW - 60.0], NOW), ([NOW - 61.0], NOW - 61.0), ([5.0, NOW - 100.0], NOW - 100.0)],
)
def test_what_runs_counts_up_to_now_as_long_as_it_is_heard_of(signs: list[float], expected: float) -> None:
    assert billable_until_s(signs, now_s=NOW) == expected
