"""A push counts once, however often and however late it comes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lockstep.parameter_server.server.ledger import CLOSURES_OF_A_RUN, PushId, PushLedger

PUSHES = st.builds(PushId, closure=st.integers(0, 6), number=st.integers(0, 2))


def test_a_push_is_taken_once() -> None:
    ledger = PushLedger()
    push = PushId(closure=3, number=0)
    assert [ledger.record(push), ledger.record(push), ledger.record(PushId(closure=3, number=1))] == [True, False, True]
    assert ledger.num_applied == 2


def test_what_comes_of_a_closure_that_has_ended_is_late() -> None:
    ledger = PushLedger()
    ledger.record(PushId(closure=0, number=0))
    ledger.raise_watermark(2)
    assert ledger.applied == ()
    assert not ledger.record(PushId(closure=0, number=0))
    assert not ledger.record(PushId(closure=1, number=0))
    assert ledger.record(PushId(closure=2, number=0))
    ledger.raise_watermark(1)
    assert ledger.watermark == 2


def test_a_training_that_begins_anew_is_above_all_that_there_was() -> None:
    ledger = PushLedger()
    assert ledger.begin_run(is_first=True) == 0, "nothing was before the first one"
    assert ledger.begin_run(is_first=False) == CLOSURES_OF_A_RUN, "its workers may push, though none has yet"
    push = PushId(closure=CLOSURES_OF_A_RUN + 5, number=0)
    assert ledger.record(push)
    first = ledger.begin_run(is_first=False)
    assert (first, ledger.num_applied, ledger.applied) == (2 * CLOSURES_OF_A_RUN, 0, ())
    assert not ledger.record(PushId(closure=CLOSURES_OF_A_RUN + 6, number=0)), "the earlier one's worker pushed late"
    assert ledger.record(PushId(closure=first, number=0))
    assert ledger.begin_run(is_first=False) == 3 * CLOSURES_OF_A_RUN


@given(steps=st.lists(st.one_of(PUSHES, st.integers(0, 7)), max_size=60), at=st.integers(0, 60))
def test_a_ledger_that_was_kept_and_read_again_knows_the_same(steps: list[PushId | int], at: int) -> None:
    """Against a ledger that forgets nothing; with a restart at any point in between."""
    ledger, watermark, seen = PushLedger(), 0, set[PushId]()
    for number, step in enumerate(steps):
        if number == at:
            ledger = PushLedger(watermark=ledger.watermark, applied=ledger.applied, num_applied=ledger.num_applied)
        if isinstance(step, int):
            ledger.raise_watermark(step)
            watermark = max(watermark, step)
        else:
            assert ledger.record(step) is (step.closure >= watermark and step not in seen)
            if step.closure >= watermark:
                seen.add(step)
    assert ledger.num_applied == len(seen)
    assert set(ledger.applied) == {push for push in seen if push.closure >= watermark}
