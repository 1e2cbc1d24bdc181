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
from weakref import WeakSet

from lockstep.errors import LockstepError, WrongStateError


@final
@dataclass(kw_only=True, slots=True)
class _Closure:
    """One that has not ended; nobody has it while it waits."""

    number: int
    num_steps: int = 1
    worker: int | None = None
    is_begun: bool = False  # some worker has had it, and may have pushed for it
    num_losses: int = 0


@final
@dataclass(kw_only=True, slots=True, eq=False, weakref_slot=True)
class Mark:
    """A closure's number: those below it and those from it on are counted as long as somebody has this.

    The book keeps counts alone, so that it does not grow with the training. Any thread may read them.

    Attributes:
        closure: the number of the first closure from it on.
        num_left: how many below it have ended since it was made, without having been run to their end.
        num_steps: of how many steps those from it on were that were run to their end.
    """

    closure: int
    num_left: int = 0
    num_steps: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class EndedSteps:
    """How many steps have ended at some time.

    Attributes:
        first: the number of the first closure of this life of the coordinator, or since it was set back.
        num_steps: how many have ended from there on, and from each mark on, of closures that were run to their end.
    """

    first: int
    num_steps: Mapping[int, int]

    def num_since(self, closure: int) -> int:
        """Returns how many have ended from a closure on, of closures that were run to their end.

        Args:
            closure: its number; where there is no mark at it, they are counted from the last one before.
        """
        return self.num_steps[max(index for index in self.num_steps if index <= max(closure, self.first))]


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
        self._next = self._watermark = first
        self._highest_run = first - 1
        self._whole_life = Mark(closure=first)
        self._marks: WeakSet[Mark] = WeakSet([self._whole_life])  # nobody asks at one that nobody has
        self._max_losses = max_losses
        self._unfinished: dict[int, _Closure] = {}
        self._waiting: deque[int] = deque()
        self._error: LockstepError | None = None

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
        self._next = self._watermark = number
        self._whole_life = Mark(closure=number)
        self._marks.add(self._whole_life)

    def mark(self) -> Mark:
        """Returns a mark at the next closure to be scheduled."""
        mark = Mark(closure=self._next)
        self._marks.add(mark)
        return mark

    def has_ended_since(self, number: int) -> bool:
        """Whether a closure has been run to its end, of those from one on.

        Args:
            number: the number of the first one.
        """
        return self._highest_run >= number

    def ended(self) -> EndedSteps:
        """Returns how many steps have ended by now."""
        num_steps = {mark.closure: mark.num_steps for mark in self._marks}
        return EndedSteps(first=self._whole_life.closure, num_steps=num_steps)

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
        closure.worker, closure.is_begun = worker, True
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

    def cancel_waiting(self, *, keeps_begun: bool = False) -> list[int]:
        """Cancels the closures that nobody has; returns their numbers.

        Args:
            keeps_begun: whether those go on waiting that a worker has had.
        """
        kept = [number for number in self._waiting if keeps_begun and self._unfinished[number].is_begun]
        cancelled = [number for number in self._waiting if number not in kept]
        self._waiting = deque(kept)
        for number in cancelled:
            self._end(self._unfinished[number], is_left=True)
        return cancelled

    def clear(self) -> None:
        """Forgets all closures: nobody waits for them any more."""
        self._waiting.clear()
        for closure in list(self._unfinished.values()):
            self._end(closure, is_left=True)

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

    def give_back(self, number: int, *, worker: int) -> bool:
        """Has a closure that its worker cannot run now wait again, first of all; returns whether that is news."""
        closure = self._held(number, worker)
        if closure is None:
            return False
        closure.worker = None
        self._waiting.appendleft(number)
        return True

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
        for mark in self._marks:
            if is_left:
                mark.num_left += closure.number < mark.closure
            elif closure.number >= mark.closure:
                mark.num_steps += closure.num_steps
        if not is_left:
            self._highest_run = max(self._highest_run, closure.number)
        del self._unfinished[closure.number]
        while self._watermark < self._next and self._watermark not in self._unfinished:
            self._watermark += 1
