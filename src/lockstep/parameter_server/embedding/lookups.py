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
        found = [np.asarray(ids) for ids in self._find_ids(np.float32(0.0), *arguments)]
        shapes = tuple(ids.shape for ids in found)
        if shapes not in self._checked:
            self._checked.add(shapes)
            others = self._find_ids(np.float32(1.0), *arguments)
            if any(not np.array_equal(ids, other) for ids, other in zip(found, others, strict=True)):
                raise InvalidInputError(
                    "ids that a step looks up depend on rows of an embedding table, which are not known before",
                    allowed="ids that come from the batch",
                )
        ids: dict[str, np.ndarray[Any, Any]] = {}
        places: list[Any] = [None] * len(found)
        for name in self._tables:
            mine = [number for number, table in enumerate(self._order) if table == name]
            flat = [found[number].reshape(-1) for number in mine]
            everything = np.concatenate(flat).astype(np.int64) if flat else np.zeros(0, np.int64)
            ids[name], inverse = np.unique(everything, return_inverse=True)
            ends = np.cumsum([len(part) for part in flat])[:-1]
            for number, part in zip(mine, np.split(inverse.astype(np.int32), ends), strict=False):
                places[number] = part.reshape(found[number].shape)
        return Wanted(ids=ids, places=places)

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
    found = np.zeros((num_rows, *rows.shape[1:]), rows.dtype)
    found[: len(rows)] = rows
    return found


@contextmanager
def _shaped(variable: Any, shape: tuple[int, ...]) -> Generator[None]:
    before = variable._shape
    variable._shape = tuple(shape)
    try:
        yield
    finally:
        variable._shape = before
