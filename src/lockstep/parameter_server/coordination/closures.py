"""The coordinator's book of closures: which wait, who has which, and what became of them. Pure: no threads, no clock.

The meanings are those of ``tf.distribute.coordinator``: a closure runs at least once; one whose worker is lost is run
again by another, and one that loses worker after worker has failed; the first error of a closure cancels those that
wait, and is raised once those that run have ended.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import final

from lockstep.errors import LockstepError, WrongStateError


@final
@dataclass(kw_only=True, slots=True)
class _Closure:
    """One that has not ended; nobody has it while it waits."""

    number: int
    num_steps: int = 1
    worker: int | None = None
    num_losses: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class EndedSteps:
    """Which steps have ended at some time.

    Attributes:
        first: the number of the first closure of this life of the coordinator, or since it was set back.
        next: the number of the next closure to be scheduled.
        under_way: of how many steps those closures are that have not ended, by their numbers.
        left: of how many those are that have ended without having been run to their end.
    """

    first: int
    next: int
    under_way: Mapping[int, int]
    left: Mapping[int, int]

    def num_since(self, closure: int) -> int:
        """Returns how many have ended from a closure on, of closures that were run to their end.

        Args:
            closure: its number.
        """
        first = max(closure, self.first)
        others = (*self.under_way.items(), *self.left.items())
        return max(0, self.next - first - sum(num_steps for number, num_steps in others if number >= first))


@final
@dataclass(frozen=True, kw_only=True)
class Lost:
    """What becomes of a lost worker's closures.

    Attributes:
        again: those that wait again.
        given_up: the one that has lost too many workers, and whose error is to be raised; None where none has.
        cancelled: all others that nobody will run, since an error is to be raised.
    """

    again: tuple[int, ...] = ()
    given_up: int | None = None
    cancelled: tuple[int, ...] = ()


@final
class ClosureBook:
    """Closures by their numbers, which count up from the first one's: by one, or by the steps of the one before.

    Not safe for several threads at once: its owner serialises calls.

    Args:
        first: the number of the first closure: one that no earlier life of the coordinator has given away.
        max_losses: how many workers a closure may lose before it counts as what kills them; None for any number.
    """

    def __init__(self, *, first: int = 0, max_losses: int | None = None) -> None:
        self._first = self._next = self._watermark = first
        self._max_losses = max_losses
        self._unfinished: dict[int, _Closure] = {}
        self._waiting: deque[int] = deque()
        self._error: LockstepError | None = None
        self._left: dict[int, int] = {}

    @property
    def watermark(self) -> int:
        """The lowest number that may still run: nobody will hear of those below again."""
        return self._watermark

    @property
    def next(self) -> int:
        """The number of the next closure to be scheduled."""
        return self._next

    def begin_at(self, number: int) -> None:
        """Has closures be numbered from one on, and counts all below it as ended; nothing may wait or run.

        Raises:
            WrongStateError: something does, or the number was given away.
        """
        if self._unfinished or number < self._next:
            raise WrongStateError(
                "closures cannot be numbered anew", received=f"{number}, with {len(self._unfinished)} under way"
            )
        self._first = self._next = self._watermark = number

    def num_left(self, *, below: int) -> int:
        """Returns how many closures below a number have ended without having been run to their end.

        Args:
            below: that number.
        """
        return sum(number < below for number in self._left)

    def has_ended_since(self, number: int) -> bool:
        """Whether a closure has been run to its end, of those from one on; looks at those alone, not at all ever left.

        Args:
            number: the number of the first one.
        """
        while number < self._next:
            unfinished = self._unfinished.get(number)
            num_steps = self._left.get(number) if unfinished is None else unfinished.num_steps
            if num_steps is None:
                return True
            number += num_steps
        return False

    def ended(self) -> EndedSteps:
        """Returns which steps have ended by now."""
        under_way = {number: closure.num_steps for number, closure in self._unfinished.items()}
        return EndedSteps(first=self._first, next=self._next, under_way=under_way, left=dict(self._left))

    @property
    def is_done(self) -> bool:
        """Whether every closure has ended, and none that failed is to be told of."""
        return not self._unfinished and self._error is None

    @property
    def error(self) -> LockstepError | None:
        """What a closure failed with, where nobody has been told of it."""
        return self._error

    @property
    def is_settled(self) -> bool:
        """Whether nothing waits and nothing runs: an error that is there can be raised now."""
        return not self._unfinished

    @property
    def num_running(self) -> int:
        """How many closures workers have."""
        return len(self._unfinished) - len(self._waiting)

    @property
    def first_waiting(self) -> int | None:
        """The number of the closure that `assign` gives out next; None where none waits."""
        return self._waiting[0] if self._waiting else None

    def schedule(self, *, num_steps: int = 1) -> int:
        """Adds a closure at the end; returns its number.

        Args:
            num_steps: how many numbers it takes up, so that they count steps where closures are of several.
        """
        closure = _Closure(number=self._next, num_steps=num_steps)
        self._next += num_steps
        self._unfinished[closure.number] = closure
        self._waiting.append(closure.number)
        return closure.number

    def assign(self, worker: int) -> int | None:
        """Gives a worker the closure that has waited longest; None where none waits."""
        if not self._waiting:
            return None
        closure = self._unfinished[self._waiting.popleft()]
        closure.worker = worker
        return closure.number

    def finish(self, number: int, *, worker: int) -> bool:
        """Notes that a worker has run a closure.

        Returns:
            Whether that is news: not for one that was taken from the worker since, or ended before.
        """
        closure = self._held(number, worker)
        if closure is None:
            return False
        self._end(closure)
        return True

    def fail(self, number: int, *, worker: int, error: LockstepError) -> list[int]:
        """Notes that a closure raised an error; those that wait are cancelled.

        Returns:
            The numbers of those that were cancelled, and of the one that failed; none where that is no news.
        """
        closure = self._held(number, worker)
        if closure is None:
            return []
        self._end(closure, is_left=True)
        if self._error is None:
            self._error = error
        return [number, *self.cancel_waiting()]

    def cancel_waiting(self) -> list[int]:
        """Cancels the closures that nobody has; returns their numbers."""
        cancelled = list(self._waiting)
        self._waiting.clear()
        for number in cancelled:
            self._end(self._unfinished[number], is_left=True)
        return cancelled

    def clear(self) -> None:
        """Forgets all closures: nobody waits for them any more."""
        self._left |= {number: closure.num_steps for number, closure in self._unfinished.items()}
        self._unfinished.clear()
        self._waiting.clear()
        self._watermark = self._next

    def lose(self, worker: int, *, give_up: Callable[[int, int], LockstepError]) -> Lost:
        """Takes a lost worker's closures back; they go first again, in their order.

        One that has lost too many workers is given up, which is its error as one that it raised would be. Where an
        error waits to be raised, this one or another, the closures are cancelled, as all others were.

        Args:
            worker: the worker.
            give_up: returns the error of a closure that is given up, by its number and that of the workers it has lost.
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

    def give_back(self, number: int, *, worker: int) -> None:
        """Has a closure that its worker cannot run now wait again, first of all; nothing where that is no news."""
        closure = self._held(number, worker)
        if closure is not None:
            closure.worker = None
            self._waiting.appendleft(number)

    def take_error(self) -> LockstepError | None:
        """Returns the error that is to be raised, once; closures may be scheduled again after that."""
        error, self._error = self._error, None
        return error

    def held_by(self, worker: int) -> list[int]:
        """Returns the closures that a worker has, in their order."""
        return sorted(number for number, closure in self._unfinished.items() if closure.worker == worker)

    def _held(self, number: int, worker: int) -> _Closure | None:
        closure = self._unfinished.get(number)
        return closure if closure is not None and closure.worker == worker else None

    def _end(self, closure: _Closure, *, is_left: bool = False) -> None:
        if is_left:
            self._left[closure.number] = closure.num_steps
        del self._unfinished[closure.number]
        while self._watermark < self._next and self._watermark not in self._unfinished:
            self._watermark += 1
