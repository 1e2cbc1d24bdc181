"""Which rows of which tables a step uses: found before it runs, from its batch, and given to it as small tables.

A step that looks rows up is traced twice. First for the ids alone: the compiler leaves all else out of that program.
Then with the rows of a batch's different ids in the place of each table, and the ids' places among them.
"""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, final

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.embedding.passing import PassedOn, passed_on

LEAST_ROWS: Final = 8


class AbstractLookups(ABC):
    """What stands for lookups while a step is traced."""

    @abstractmethod
    def look_up(self, table: Any, ids: Any) -> Any:
        """Returns rows.

        Args:
            table: the variable of shape (0, columns) that stands for the table.
            ids: whole numbers of any shape.

        Returns:
            An array of the ids' shape and columns.
        """


_current: ContextVar[AbstractLookups | None] = ContextVar("lockstep_lookups", default=None)


def current_lookups() -> AbstractLookups | None:
    """Returns what lookups are done by in the step that is traced here, if any."""
    return _current.get()


@contextmanager
def _lookups(lookups: AbstractLookups) -> Generator[None]:
    token = _current.set(lookups)
    try:
        yield
    finally:
        _current.reset(token)


@final
class _Noting(AbstractLookups):
    """Notes ids; rows are as if all values were one number."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.noted: list[tuple[Any, Any]] = []

    @override
    def look_up(self, table: Any, ids: Any) -> Any:
        self.noted.append((table, jnp.asarray(ids)))
        return jnp.full((*jnp.shape(ids), table.shape[-1]), self._value, table.dtype)


@final
class _Finding(AbstractLookups):
    """Finds rows among those that were given in the tables' places."""

    def __init__(self, places: Sequence[Any]) -> None:
        self._places = iter(places)

    @override
    def look_up(self, table: Any, ids: Any) -> Any:
        places = next(self._places, None)
        assert places is not None, "the step looks up what it looked up when its ids were found"
        return jnp.take(table.value, places, axis=0)


@final
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The rows that a step uses.

    Attributes:
        ids: for each table, by its name, int64[rows] of its different ids, rising.
        places: for each lookup of the step, in their order, int32 places among those, of the shape of its ids.
    """

    ids: dict[str, np.ndarray[Any, Any]]
    places: list[np.ndarray[Any, Any]]


@final
class Lookups:
    """The lookups of one step.

    Args:
        tables: the variables that stand for the tables, by the tables' names.
        run: runs the step's code under a trace: given the step's arguments, it calls the model.
    """

    def __init__(self, tables: Mapping[str, Any], run: Callable[..., Any]) -> None:
        self._tables = dict(tables)
        self._names = {id(variable): name for name, variable in tables.items()}
        self._run = run
        self._order: list[str] = []
        self._find_ids: Any = jax.jit(self._note)
        self._passed_on: dict[Any, list[PassedOn] | None] = {}
        self._checked: set[Any] = set()

    def wanted(self, *arguments: Any) -> Wanted:
        """Returns the rows that a step uses.

        Args:
            arguments: the step's own.

        Raises:
            InvalidInputError: ids depend on rows of a table.
        """
        if not self._tables:
            return Wanted(ids={}, places=[])
        found = self._ids(arguments)
        ids: dict[str, np.ndarray[Any, Any]] = {}
        places: list[Any] = [None] * len(found)
        for name in self._tables:
            mine = [number for number, table in enumerate(self._order) if table == name]
            flat = [found[number].reshape(-1) for number in mine]
            everything = np.concatenate(flat).astype(np.int64) if flat else np.zeros(0, np.int64)
            ids[name], inverse = different(everything)
            ends = np.cumsum([len(part) for part in flat])[:-1]
            for number, part in zip(mine, np.split(inverse, ends), strict=False):
                places[number] = part.reshape(found[number].shape)
        return Wanted(ids=ids, places=places)

    def _ids(self, arguments: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
        leaves = jax.tree.leaves((np.float32(0.0), *arguments))
        shapes = tuple(np.shape(leaf) for leaf in leaves)
        if shapes not in self._passed_on:
            self._passed_on[shapes] = passed_on(self._find_ids.trace(np.float32(0.0), *arguments).jaxpr.jaxpr)
        known = self._passed_on[shapes]
        if known is not None:  # which need not wait for the step that is computed
            return [ids.read(leaves) for ids in known]
        found = [np.asarray(ids) for ids in self._find_ids(np.float32(0.0), *arguments)]
        if shapes not in self._checked:
            self._checked.add(shapes)
            others = self._find_ids(np.float32(1.0), *arguments)
            if any(not np.array_equal(ids, other) for ids, other in zip(found, others, strict=True)):
                raise InvalidInputError(
                    "ids that a step looks up depend on rows of an embedding table, which are not known before",
                    allowed="ids that come from the batch",
                )
        return found

    @contextmanager
    def finding(self, places: Sequence[Any], rows: Mapping[str, Any]) -> Generator[None]:
        """Within, the step's lookups find rows in the tables' places, whose variables have the rows' shape.

        Args:
            places: for each lookup, places among the rows.
            rows: for each table, an array of rows; more than are used may be there.
        """
        with ExitStack() as stack:
            for name, variable in self._tables.items():
                stack.enter_context(_shaped(variable, rows[name].shape))
            stack.enter_context(_lookups(_Finding(places)))
            yield

    def _note(self, value: Any, *arguments: Any) -> list[Any]:
        noting = _Noting(value)
        with _lookups(noting):
            self._run(*arguments)
        self._order = [self._names[id(table)] for table, _ in noting.noted]
        return [ids for _, ids in noting.noted]


def padded(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns rows with zeros after them, as many in all as a power of two: few different shapes are compiled."""
    num_rows = max(LEAST_ROWS, 1 << max(0, len(rows) - 1).bit_length())
    found = np.empty((num_rows, *rows.shape[1:]), rows.dtype)
    found[: len(rows)] = rows
    found[len(rows) :] = 0
    return found


def different(ids: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the different ones among ids, and the place of each id among them.

    As ``numpy.unique`` with its inverse, in two thirds of the time: of id and place in one number, it is sorted once.

    Args:
        ids: int64[ids].

    Returns:
        int64[different], rising, and int32[ids].
    """
    if len(ids) and not -(2**31) <= ids.min() <= ids.max() < 2**31:  # of no table; which is said elsewhere
        found, inverse = np.unique(ids, return_inverse=True)
        return found, inverse.astype(np.int32)
    keys = (ids << 32) | np.arange(len(ids))
    keys.sort()
    ordered = keys >> 32
    is_first = np.ones(len(ids), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    places = np.empty(len(ids), np.int32)
    places[keys & 0xFFFFFFFF] = np.cumsum(is_first, dtype=np.int32) - 1
    return ordered[is_first], places


@contextmanager
def _shaped(variable: Any, shape: tuple[int, ...]) -> Generator[None]:
    before = variable._shape
    variable._shape = tuple(shape)
    try:
        yield
    finally:
        variable._shape = before
