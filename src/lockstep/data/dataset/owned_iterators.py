"""Iterators of Grain's whose threads end before Python clears the modules, in an order in which none waits for ever."""

from __future__ import annotations

import weakref
from typing import Final, final

import grain

_NEVER_WARN: Final = grain.experimental.DatasetOptions(
    filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=None
)


def iterate_part(dataset: grain.IterDataset) -> grain.DatasetIterator:
    """Returns an iterator over a data set of Grain's that is a part of a larger one.

    It turns off Grain's warnings about filters that drop most elements.
    """
    quiet = grain.experimental.WithOptionsIterDataset(dataset, _NEVER_WARN)
    quiet.has_child = True  # otherwise, Grain decorates the iterator as that of the end of a pipeline
    return iter(quiet)


@final
class OwnedIterator:
    """An iterator whose threads end when the program ends at the latest, before Python clears the modules.

    Even deleting a closed iterator of Grain's uses Grain's modules. So this object must hold the only reference to it.

    Args:
        dataset: a data set of Grain's.
        ends_last: whether threads of other iterators read this one. At the end of the program, they end before it: a
            thread that waits for an element of an iterator that has ended waits for ever, and ending it does too.
    """

    def __init__(self, dataset: grain.IterDataset, *, ends_last: bool = False) -> None:
        self._held = [iterate_part(dataset)]
        self._end = weakref.finalize(self, _end, self._held)
        if ends_last:
            self._end.atexit = False
            _LAST.append(weakref.ref(self, _LAST.remove))

    @property
    def iterator(self) -> grain.DatasetIterator:
        """The iterator; callers must not keep a reference to it."""
        return self._held[0]

    def end(self) -> None:
        """Closes the iterator; a second call does nothing."""
        self._end()


def _end(held: list[grain.DatasetIterator]) -> None:
    held.pop().close()


_LAST: Final[list[weakref.ref[OwnedIterator]]] = []
"""Those that end last, in the order of their beginnings: one that reads another began before it."""


def _end_the_last() -> None:
    for reference in tuple(_LAST):
        owned = reference()
        if owned is not None:
            owned.end()


@final
class _ProgramEnd:
    """Lives as long as the program."""


_PROGRAM_END: Final = _ProgramEnd()
# At the end of the program, finalizers run in the reverse order of their making, so this one is the last.
weakref.finalize(_PROGRAM_END, _end_the_last)
