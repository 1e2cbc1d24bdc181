"""The coordinator's record of closures: which are waiting, which worker has which, how they ended.

No threads, no clock.

The semantics are those of ``tf.distribute.coordinator``. A closure runs at least once. If its worker is lost, another
worker runs it again; if it loses too many workers, it has failed. The first error of a closure cancels all waiting
closures, and is raised once the running ones have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final
from weakref import WeakSet

from lockstep.errors import LockstepError, WrongStateError


@final
@dataclass(kw_only=True, slots=True)
class _Closure:
    """A closure that has not ended. `worker` is None while it waits."""

    number: int
    num_steps: int = 1
    worker: int | None = None
    is_begun: bool = False  # a worker has had it, and may have pushed for it
    num_losses: int = 0


@final
@dataclass(kw_only=True, slots=True, eq=False, weakref_slot=True)
class Mark:
    """A position in the numbers of closures, with counts of the closures below it and from it on.

    The counts are kept as long as a reference to the mark exists. The book has only counts, so that it does not grow
    with the training. Any thread may read them.

    Attributes:
        closure: the number of the first closure after the mark.
        num_not_run: the number of closures below the mark that ended after it was made, without having run to their
            end.
        num_steps: the number of steps of the closures from the mark on that have run to their end.
    """

    closure: int
    num_not_run: int = 0
    num_steps: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class EndedSteps:
    """The number of steps that have ended at some time.

    Attributes:
        first: the number of the coordinator's first closure, or of the first one after a restore.
        num_steps: for `first` and for each mark, the number of steps in closures from there on that have run to their
            end.
    """

    first: int
    num_steps: Mapping[int, int]

    def num_since(self, closure: int) -> int:
        """Returns the number of steps, from a closure on, in closures that have run to their end.

        Args:
            closure: the number of the closure. If there is no mark at it, steps are counted from the last mark before
                it.
        """
        return self.num_steps[max(index for index in self.num_steps if index <= max(closure, self.first))]


@final
@dataclass(frozen=True, kw_only=True)
class Lost:
    """The outcome for the closures of a lost worker.

    Attributes:
        again: the closures that wait again.
        given_up: the closure that has lost too many workers, and whose error is to be raised; None if there is none.
        cancelled: all other closures that will not run, because an error is to be raised.
    """

    again: tuple[int, ...] = ()
    given_up: int | None = None
    cancelled: tuple[int, ...] = ()


@final
class ClosureBook:
    """Closures by number. The number of the next closure is that of the previous one plus its number of steps.

    Not thread-safe: the owner serializes calls.

    Args:
        first: the number of the first closure. No earlier run of the coordinator may have used it.
        max_losses: the number of workers that a closure may lose before it counts as their cause; None for no limit.
    """

    def __init__(self, *, first: int = 0, max_losses: int | None = None) -> None:
        self._next = self._watermark = first
        self._highest_run = first - 1
        self._whole_life = Mark(closure=first)
        self._marks: WeakSet[Mark] = WeakSet([self._whole_life])  # weak: unreferenced marks are not read
        self._max_losses = max_losses
        self._unfinished: dict[int, _Closure] = {}
        self._waiting: deque[int] = deque()
        self._error: LockstepError | None = None

    @property
    def watermark(self) -> int:
        """The lowest number that may still run. Closures below it are over."""
        return self._watermark

    @property
    def next(self) -> int:
        """The number of the next closure to be scheduled."""
        return self._next

    def set_next_number(self, number: int) -> None:
        """Sets the number of the next closure, and counts all below it as ended. No closure may be waiting or running.

        Raises:
            WrongStateError: a closure is waiting or running, or the number was used before.
        """
        if self._unfinished or number < self._next:
            raise WrongStateError(
                "closure numbers cannot be changed", received=f"{number}, with {len(self._unfinished)} under way"
            )
        self._next = self._watermark = number
        self._whole_life = Mark(closure=number)
        self._marks.add(self._whole_life)

    def mark(self) -> Mark:
        """Returns a mark at the next closure to be scheduled."""
        mark = Mark(closure=self._next)
        self._marks.add(mark)
        return mark

    def has_ended_since(self, number: int) -> bool:
        """Whether any closure from a number on has run to its end.

        Args:
            number: the number of the first closure that counts, or `next` at some time. A number within a closure of
                several steps does not count that closure, because only the first number of a closure is compared.
        """
        return self._highest_run >= number

    def ended(self) -> EndedSteps:
        """Returns the number of steps that have ended by now."""
        num_steps = {mark.closure: mark.num_steps for mark in self._marks}
        return EndedSteps(first=self._whole_life.closure, num_steps=num_steps)

    @property
    def is_done(self) -> bool:
        """Whether every closure has ended, and there is no error that was not raised yet."""
        return not self._unfinished and self._error is None

    @property
    def error(self) -> LockstepError | None:
        """The first error of a closure, if it was not raised yet."""
        return self._error

    @property
    def is_settled(self) -> bool:
        """Whether no closure is waiting or running, so that an error can be raised."""
        return not self._unfinished

    @property
    def num_running(self) -> int:
        """The number of closures that workers have."""
        return len(self._unfinished) - len(self._waiting)

    @property
    def first_waiting(self) -> int | None:
        """The number of the closure that `assign` returns next; None if none is waiting."""
        return self._waiting[0] if self._waiting else None

    def schedule(self, *, num_steps: int = 1) -> int:
        """Adds a closure at the end; returns its number.

        Args:
            num_steps: the number of steps in the closure. It takes up as many numbers, so that numbers count steps.
        """
        closure = _Closure(number=self._next, num_steps=num_steps)
        self._next += num_steps
        self._unfinished[closure.number] = closure
        self._waiting.append(closure.number)
        return closure.number

    def assign(self, worker: int) -> int | None:
        """Assigns the closure that has waited longest to a worker, and returns its number; None if none is waiting."""
        if not self._waiting:
            return None
        closure = self._unfinished[self._waiting.popleft()]
        closure.worker, closure.is_begun = worker, True
        return closure.number

    def finish(self, number: int, *, worker: int) -> bool:
        """Records that a worker has run a closure.

        Returns:
            Whether this counts. False if the closure was taken from the worker before, or had already ended.
        """
        closure = self._held(number, worker)
        if closure is None:
            return False
        self._end(closure)
        return True

    def fail(self, number: int, *, worker: int, error: LockstepError) -> list[int]:
        """Records that a closure raised an error, and cancels the waiting ones.

        Returns:
            The numbers of the failed closure and of the cancelled ones; empty if the worker did not have the closure.
        """
        closure = self._held(number, worker)
        if closure is None:
            return []
        self._end(closure, has_run=False)
        if self._error is None:
            self._error = error
        return [number, *self.cancel_waiting()]

    def cancel_waiting(self, *, keeps_begun: bool = False) -> list[int]:
        """Cancels the closures that no worker has; returns their numbers.

        Args:
            keeps_begun: whether to keep those that a worker has had.
        """
        kept = [number for number in self._waiting if keeps_begun and self._unfinished[number].is_begun]
        cancelled = [number for number in self._waiting if number not in kept]
        self._waiting = deque(kept)
        for number in cancelled:
            self._end(self._unfinished[number], has_run=False)
        return cancelled

    def clear(self) -> None:
        """Forgets all closures, because nobody waits for them any more."""
        self._waiting.clear()
        for closure in list(self._unfinished.values()):
            self._end(closure, has_run=False)

    def lose(self, worker: int, *, give_up: Callable[[int, int], LockstepError]) -> Lost:
        """Takes back the closures of a lost worker. They go to the front of the queue again, in their order.

        A closure that has lost too many workers is given up: it fails as if it had raised an error. If any error is to
        be raised, this one or another, the closures are cancelled like all other waiting ones.

        Args:
            worker: the lost worker.
            give_up: returns the error of a closure that is given up, from its number and the number of workers it has
                lost.
        """
        held = self.held_by(worker)
        given_up: int | None = None
        for number in held:
            closure = self._unfinished[number]
            closure.worker = None
            closure.num_losses += 1
            is_deadly = self._max_losses is not None and closure.num_losses > self._max_losses
            if is_deadly and self._error is None:
                given_up, self._error = number, give_up(number, closure.num_losses)
        self._waiting.extendleft(reversed(held))
        if self._error is None:
            return Lost(again=tuple(held))
        cancelled = self.cancel_waiting()
        return Lost(given_up=given_up, cancelled=tuple(number for number in cancelled if number != given_up))

    def give_back(self, number: int, *, worker: int) -> bool:
        """Puts a closure that its worker cannot run now back to the front; returns whether the worker had it."""
        closure = self._held(number, worker)
        if closure is None:
            return False
        closure.worker = None
        self._waiting.appendleft(number)
        return True

    def take_error(self) -> LockstepError | None:
        """Returns the error that is to be raised, once. After that, closures may be scheduled again."""
        error, self._error = self._error, None
        return error

    def held_by(self, worker: int) -> list[int]:
        """Returns the closures that a worker has, in order."""
        return sorted(number for number, closure in self._unfinished.items() if closure.worker == worker)

    def _held(self, number: int, worker: int) -> _Closure | None:
        closure = self._unfinished.get(number)
        return closure if closure is not None and closure.worker == worker else None

    def _end(self, closure: _Closure, *, has_run: bool = True) -> None:
        for mark in self._marks:
            if not has_run:
                mark.num_not_run += closure.number < mark.closure
            elif closure.number >= mark.closure:
                mark.num_steps += closure.num_steps
        if has_run:
            self._highest_run = max(self._highest_run, closure.number)
        del self._unfinished[closure.number]
        while self._watermark < self._next and self._watermark not in self._unfinished:
            self._watermark += 1
