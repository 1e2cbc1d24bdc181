"""The book of closures: each runs at least once, in order, whoever is lost in between; an error cancels what waits."""

from __future__ import annotations

import tracemalloc
from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from lockstep.errors import InvalidInputError, LockstepError
from lockstep.parameter_server.coordination.closures import ClosureBook, Lost, Mark


def scheduled(num_closures: int) -> ClosureBook:
    book = ClosureBook()
    for _ in range(num_closures):
        book.schedule()
    return book


def give_up(number: int, num_losses: int) -> LockstepError:
    return InvalidInputError(f"{number} lost {num_losses}")


def test_closures_go_out_in_their_order_and_end_in_any() -> None:
    book = scheduled(3)
    assert [book.assign(worker) for worker in (0, 1, 0)] == [0, 1, 2]
    assert book.assign(1) is None
    assert book.held_by(0) == [0, 2]
    assert book.finish(2, worker=0)
    assert book.watermark == 0
    assert book.finish(0, worker=0)
    assert book.watermark == 1
    assert not book.is_done
    assert book.finish(1, worker=1)
    assert book.is_done
    assert book.watermark == 3


def test_closures_of_several_steps_are_numbered_by_their_first_ones() -> None:
    book = ClosureBook(first=5)
    assert [book.schedule(num_steps=num_steps) for num_steps in (3, 1, 2)] == [5, 8, 9]
    assert book.next == 11
    assert book.first_waiting == 5
    assert [book.assign(0) for _ in range(2)] == [5, 8]
    assert book.first_waiting == 9
    assert book.finish(8, worker=0)
    assert book.watermark == 5
    assert book.finish(5, worker=0)
    assert book.watermark == 9, "no step of the first two may be taken again"


def test_what_has_ended_and_what_was_left_is_known_at_each_mark() -> None:
    book = ClosureBook(first=10)
    for num_steps in (1, 3):
        book.schedule(num_steps=num_steps)
    middle = book.mark()
    for _ in range(2):
        book.schedule()
    marks = [middle, book.mark()]
    for _ in range(3):
        book.assign(0)
    assert not book.has_ended_since(10)
    assert book.finish(11, worker=0)
    assert book.has_ended_since(10)
    ended = book.ended()
    assert ended.num_since(0) == 3, "one is of three steps, and the one before it still runs"
    assert ended.num_since(14) == 0
    assert book.fail(14, worker=0, error=InvalidInputError("it")) == [14, 15]
    assert book.error is not None
    assert [mark.num_not_run for mark in marks] == [0, 2]
    assert not book.has_ended_since(14), "what failed, or was cancelled, was not run to its end"
    assert book.finish(10, worker=0)
    book.take_error()
    assert book.error is None
    assert book.schedule() == 16
    book.assign(0)
    assert book.finish(16, worker=0)
    ended_later = book.ended()
    assert [ended_later.num_since(number) for number in (0, 14, 15, 16)] == [5, 1, 1, 1], "15: from the mark before it"
    book.set_next_number(100)
    book.schedule()
    last = book.mark()
    book.clear()
    assert last.num_not_run == 1
    assert ended.num_since(0) == 3, "as it was then"
    assert book.ended().num_since(0) == 0, "this life began with 100, and that was left"


def test_a_book_does_not_grow_with_the_steps_of_which_the_slowest_are_left() -> None:
    """As synchronous steps with a back-up worker do, and checkpoints now and then."""
    book = ClosureBook()

    def train(num_steps: int) -> None:
        mark = book.mark()
        for _ in range(num_steps):
            for _ in range(3):
                book.schedule()
            taken = [book.assign(worker) for worker in (0, 1)]
            book.cancel_waiting()
            for worker, number in enumerate(taken):
                assert number is not None
                assert book.finish(number, worker=worker)
        assert mark.num_not_run == 0, "those that were left came after it"
        assert book.ended().num_since(mark.closure) == 2 * num_steps

    train(100)
    tracemalloc.start()
    try:
        for _ in range(10):
            train(1000)
        size_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert size_bytes < 10_000, "less than a byte for each that was left"


def test_a_lost_workers_closures_go_first_again_in_their_order() -> None:
    book = scheduled(4)
    for worker in (0, 1, 0):
        book.assign(worker)
    assert book.lose(0, give_up=give_up) == Lost(again=(0, 2))
    assert [book.assign(1) for _ in range(3)] == [0, 2, 3]
    assert not book.finish(0, worker=0), "who was taken for lost has nothing to say any more"
    assert book.finish(0, worker=1)


def test_the_first_error_is_kept_and_cancels_those_that_wait() -> None:
    book = scheduled(5)
    for worker in (0, 1, 2):
        book.assign(worker)
    first = InvalidInputError("first")
    assert book.fail(1, worker=1, error=first) == [1, 3, 4]
    assert book.fail(2, worker=2, error=InvalidInputError("second")) == [2]
    assert book.assign(1) is None
    assert not book.is_settled, "one of them still runs"
    assert book.lose(0, give_up=give_up) == Lost(cancelled=(0,)), "it would be cancelled if it waited"
    assert book.is_settled
    assert not book.is_done, "an error is to be told"
    assert book.take_error() is first
    assert book.take_error() is None
    assert book.is_done
    assert book.schedule() == 5


def test_a_closure_that_loses_worker_after_worker_has_failed_as_any_other() -> None:
    book = ClosureBook(max_losses=1)
    for _ in range(3):
        book.schedule()
    mark = book.mark()
    assert [book.assign(worker) for worker in (0, 1)] == [0, 1]
    assert book.lose(0, give_up=give_up) == Lost(again=(0,))
    assert [book.assign(worker) for worker in (2, 2)] == [0, 2]
    assert book.lose(2, give_up=give_up) == Lost(given_up=0, cancelled=(2,)), "it has lost one worker too many"
    assert not book.is_settled, "another one still runs"
    assert book.lose(1, give_up=give_up) == Lost(cancelled=(1,))
    assert book.is_settled
    assert not book.is_done
    assert str(book.take_error()) == "0 lost 2"
    assert book.is_done
    assert mark.num_not_run == 3


def test_what_a_worker_has_had_may_be_left_to_wait_when_the_rest_is_cancelled() -> None:
    book = scheduled(5)
    assert [book.assign(worker) for worker in (0, 1, 2)] == [0, 1, 2]
    book.lose(1, give_up=give_up)
    book.give_back(2, worker=2)
    assert book.cancel_waiting(keeps_begun=True) == [3, 4]
    assert [book.assign(0) for _ in range(3)] == [2, 1, None]
    book.lose(0, give_up=give_up)
    assert book.cancel_waiting() == [0, 1, 2]
    assert book.is_settled


def test_numbers_go_on_after_a_coordinators_restart() -> None:
    book = ClosureBook(first=17)
    assert book.watermark == 17
    assert book.schedule() == 17


class AnyCourse(RuleBasedStateMachine):
    """Whatever happens: nothing is run by two at once, and nothing is forgotten."""

    def __init__(self) -> None:
        super().__init__()
        self.book = ClosureBook(max_losses=2)
        self.losses = Counter[int]()
        self.ended: set[int] = set()
        self.held: dict[int, int] = {}
        self.num_scheduled = 0
        self.has_error = False
        self.run: list[int] = []
        self.marks: list[tuple[Mark, int]] = []  # and how many below each had been left before

    def num_not_run(self, below: int) -> int:
        return sum(number < below for number in self.ended - set(self.run))

    @rule()
    def mark(self) -> None:
        mark = self.book.mark()
        assert mark.closure == self.num_scheduled
        self.marks.append((mark, self.num_not_run(mark.closure)))

    @rule()
    def schedule(self) -> None:
        assert self.book.schedule() == self.num_scheduled
        self.num_scheduled += 1

    @rule(worker=st.integers(0, 3))
    def assign(self, worker: int) -> None:
        number = self.book.assign(worker)
        if number is None:
            assert self.num_scheduled == len(self.ended) + len(self.held)
            return
        assert number not in self.held
        assert number not in self.ended
        self.held[number] = worker

    @precondition(lambda self: self.held)
    @rule(data=st.data(), is_right=st.booleans())
    def finish(self, data: st.DataObject, is_right: bool) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        worker = self.held[number] if is_right else self.held[number] + 1
        assert self.book.finish(number, worker=worker) is is_right
        if is_right:
            del self.held[number]
            self.ended.add(number)
            self.run.append(number)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def fail(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.held)))
        gone = self.book.fail(number, worker=self.held.pop(number), error=InvalidInputError("e"))
        self.ended.update(gone)
        self.has_error = True
        assert self.num_scheduled == len(self.ended) + len(self.held)

    @rule(worker=st.integers(0, 3))
    def lose(self, worker: int) -> None:
        mine = sorted(number for number, holder in self.held.items() if holder == worker)
        self.losses.update(mine)
        deadly = [number for number in mine if self.losses[number] > 2]
        waiting = set(range(self.num_scheduled)) - self.ended - set(self.held)
        lost = self.book.lose(worker, give_up=give_up)
        if self.has_error or deadly:
            assert lost.given_up == (deadly[0] if deadly and not self.has_error else None)
            gone = {*lost.cancelled, *deadly[:1]}
            assert gone == {*mine, *waiting}
            self.has_error = True
            self.ended.update(gone)
        else:
            assert lost == Lost(again=tuple(mine))
        for number in mine:
            del self.held[number]

    @precondition(lambda self: self.book.is_settled)
    @rule()
    def take_error(self) -> None:
        assert (self.book.take_error() is not None) is self.has_error
        self.has_error = False

    @invariant()
    def watermark_is_the_lowest_that_may_run(self) -> None:
        unfinished = sorted(set(range(self.num_scheduled)) - self.ended)
        assert self.book.watermark == (unfinished[0] if unfinished else self.num_scheduled)
        assert self.book.is_done is (not unfinished and not self.has_error)

    @invariant()
    def marks_count_what_is_below_them_and_what_is_not(self) -> None:
        ended = self.book.ended()
        for mark, num_before in self.marks:
            assert mark.num_not_run == self.num_not_run(mark.closure) - num_before
            assert ended.num_since(mark.closure) == sum(number >= mark.closure for number in self.run)
        for number in range(self.num_scheduled + 1):
            assert self.book.has_ended_since(number) is any(one >= number for one in self.run)


TestAnyCourse = AnyCourse.TestCase
TestAnyCourse.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
