"""Finds out which rows of which tables a step uses, from its batch before it runs, and passes it these rows alone.

A step that looks up rows is traced twice. The first trace computes only the ids: the compiler leaves everything else
out of that program. The second one has, in place of each table, the rows of the batch's distinct ids, and the index of
each id among them.
"""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import jax
import jax.numpy as jnp
import numpy as np
from typing_extensions import override

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.embedding.bits import check_bits
from lockstep.parameter_server.embedding.unchanged_arguments import UnchangedArgument, find_unchanged_arguments
from lockstep.parameter_server.links.segments import ALIGNMENT
from lockstep.strategies.loops.emitting import collect_emitted, emit
from lockstep.strategies.loops.replica import active_replica_context
from lockstep.strategies.mesh import BATCH_AXIS
from lockstep.upstream.jax_tracing import used_inputs
from lockstep.upstream.keras_variables import shaped_as

LEAST_ROWS: Final = 8


class AbstractLookups(ABC):
    """Stands in for the lookups of a step while it is traced."""

    @abstractmethod
    def look_up(self, table: Any, ids: Any) -> Any:
        """Returns the rows of ids.

        Args:
            table: the variable of shape (0, columns) that stands for the table.
            ids: integers of any shape.

        Returns:
            An array with the shape of the ids, followed by columns.
        """


_current: ContextVar[AbstractLookups | None] = ContextVar("lockstep_lookups", default=None)


def current_lookups() -> AbstractLookups | None:
    """Returns what performs the lookups of the step that is being traced in this context; None if there is none."""
    return _current.get()


@contextmanager
def _lookups(lookups: AbstractLookups) -> Generator[None]:
    token = _current.set(lookups)
    try:
        yield
    finally:
        _current.reset(token)


@final
class _LookupRecorder(AbstractLookups):
    """Records tables and hands out ids. The returned rows are made up from one number."""

    def __init__(self, value: Any) -> None:
        self._value = value
        self.tables: list[Any] = []

    @override
    def look_up(self, table: Any, ids: Any) -> Any:
        self.tables.append(table)
        emit(jnp.asarray(ids))
        return placeholder_array((*jnp.shape(ids), table.shape[-1]), table.dtype, value=self._value)


@final
class _LookupReader(AbstractLookups):
    """Takes rows from the arrays that were passed in place of the tables."""

    def __init__(self, indices: Sequence[Any]) -> None:
        self._indices = iter(indices)

    @override
    def look_up(self, table: Any, ids: Any) -> Any:
        indices = next(self._indices, None)
        assert indices is not None, "the step looks up what it looked up when its ids were found"
        if active_replica_context() is not None:
            indices = indices[jax.lax.axis_index(BATCH_AXIS)]
        return jnp.take(table.value, indices, axis=0)


@final
@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The rows that a step uses.

    Attributes:
        ids: int64[rows] by table name, the table's distinct ids, ascending.
        indices: for each lookup of the step, in order, the index of each id among the distinct ones: int32, with the
            shape of the lookup's ids.
    """

    ids: dict[str, np.ndarray[Any, Any]]
    indices: list[np.ndarray[Any, Any]]


Prepared: TypeAlias = tuple[Any, tuple[Any, ...]]
"""A function that `jax.jit` has made, and the arguments for calling it."""


@final
@dataclass(kw_only=True)
class _IdProgram:
    """A program that finds the ids of a step, for arguments with certain shapes.

    Attributes:
        tables: the table of each lookup.
        unchanged_arguments: the arguments that are the ids; None if the ids are computed.
        used: the indices of the arguments that the ids are computed from.
        is_checked: whether the ids are known not to depend on values that are unknown before the step.
    """

    tables: list[str]
    unchanged_arguments: list[UnchangedArgument] | None
    used: Sequence[int]
    is_checked: bool = False


@final
class Lookups:
    """The lookups of one step.

    Args:
        tables: the variables that stand for the tables, by table name.
        run: runs the step's code under a trace. It receives a number, from which `placeholder_array` makes all values
            that are not known before the step, and the step's arguments; and it calls the model. It returns the
            indices, among the leaves of the arguments, of state that steps change while ids of later steps are found;
            or None if steps wait for each other.
        compiling: compiles a function. It returns a function that returns what a call of the compiled one would run.
    """

    def __init__(
        self,
        tables: Mapping[str, Any],
        run: Callable[..., Collection[int] | None],
        *,
        compiling: Callable[[Callable[..., Any]], Callable[..., Prepared]] | None = None,
    ) -> None:
        self._tables = dict(tables)
        self._names = {id(variable): name for name, variable in tables.items()}
        self._run = run
        self._order: list[str] = []
        self._changing: Collection[int] = ()
        self._find_ids = (compiling or _by_jit)(self._note)
        self._programs: dict[Any, _IdProgram] = {}

    def wanted(self, *arguments: Any) -> Wanted:
        """Returns the rows that a step uses.

        Args:
            arguments: the arguments of the step.

        Raises:
            InvalidInputError: ids depend on values that are not known before the step, such as random numbers.
        """
        if not self._tables:
            return Wanted(ids={}, indices=[])
        order, found = self._ids(arguments)
        ids: dict[str, np.ndarray[Any, Any]] = {}
        indices: list[Any] = [None] * len(found)
        for name in self._tables:
            mine = [number for number, table in enumerate(order) if table == name]
            flat = [found[number].reshape(-1) for number in mine]
            everything = np.concatenate(flat).astype(np.int64) if flat else np.zeros(0, np.int64)
            ids[name], inverse = unique_with_inverse(everything)
            ends = np.cumsum([len(part) for part in flat])[:-1]
            for number, part in zip(mine, np.split(inverse, ends), strict=False):
                indices[number] = part.reshape(found[number].shape)
        return Wanted(ids=ids, indices=indices)

    def _ids(self, arguments: Sequence[Any]) -> tuple[list[str], list[np.ndarray[Any, Any]]]:
        compiled, operands = self._find_ids(np.float32(0.0), *arguments)
        leaves = jax.tree.leaves(operands)
        key = (compiled, tuple(np.shape(leaf) for leaf in leaves))
        program = self._programs.get(key)
        if program is None:
            jaxpr = compiled.trace(*operands).jaxpr.jaxpr  # records the tables
            is_used = used_inputs(jaxpr)
            used = [index for index, own in enumerate(is_used) if own]
            if any(index - 1 in self._changing for index in used):  # the number is the first argument
                raise InvalidInputError(
                    "ids that a step looks up depend on random numbers, or on other state that steps change, which may "
                    "be another one when it runs",
                    allowed="ids that come from the batch",
                    action="draw them where the data are made",
                )
            program = self._programs[key] = _IdProgram(
                tables=self._order, unchanged_arguments=find_unchanged_arguments(jaxpr), used=used
            )
        if program.unchanged_arguments is not None:  # need not wait for the running step
            return program.tables, [ids.read(leaves) for ids in program.unchanged_arguments]
        for index in program.used:
            check_bits(leaves[index])
        found = _run(compiled, operands)
        if not program.is_checked:
            others = _run(*self._find_ids(np.float32(1.0), *arguments))
            if any(not np.array_equal(ids, other) for ids, other in zip(found, others, strict=True)):
                raise InvalidInputError(
                    "ids that a step looks up depend on rows of an embedding table, or on other parameters, which are "
                    "not known before",
                    allowed="ids that come from the batch",
                )
            program.is_checked = True
        return program.tables, found

    @contextmanager
    def finding(self, indices: Sequence[Any], rows: Mapping[str, Any]) -> Generator[None]:
        """Within, the step's lookups take rows from arrays; the tables' variables have the shapes of these arrays.

        Args:
            indices: for each lookup, the indices of its rows.
            rows: for each table, an array of rows. It may have more rows than are used.
        """
        with ExitStack() as stack:
            for name, variable in self._tables.items():
                stack.enter_context(shaped_as(variable, rows[name].shape))
            stack.enter_context(_lookups(_LookupReader(indices)))
            yield

    def _note(self, value: Any, *arguments: Any) -> list[Any]:
        recorder = _LookupRecorder(value)
        with _lookups(recorder), collect_emitted() as ids:
            self._changing = self._run(value, *arguments) or ()
        self._order = [self._names[id(table)] for table in recorder.tables]
        return ids


def _by_jit(function: Callable[..., Any]) -> Callable[..., Prepared]:
    compiled = jax.jit(function)
    return lambda *arguments: (compiled, arguments)


def _run(compiled: Any, operands: Sequence[Any]) -> list[np.ndarray[Any, Any]]:
    return [np.asarray(ids) for ids in jax.tree.leaves(compiled(*operands))]


def placeholder_array(shape: Sequence[int], dtype: Any, *, value: Any) -> Any:
    """Returns a made-up array in place of an unknown one. Other values give other elements, in another order.

    Args:
        shape: the shape of the array.
        dtype: the dtype of the array.
        value: a float32 scalar; 0 gives zeros.
    """
    pattern = jnp.arange(math.prod(shape), dtype=jnp.int32) % 7 - 3
    return (value * pattern).astype(dtype).reshape(shape)


def check_ids(name: str, ids: np.ndarray[Any, Any], *, num_rows: int) -> None:
    """Checks that a table has the requested rows.

    Args:
        name: the name of the table.
        ids: int64[rows], ascending.
        num_rows: the number of rows of the table.

    Raises:
        InvalidInputError: an id is not in the table.
    """
    if len(ids) and (ids[0] < 0 or ids[-1] >= num_rows):
        raise InvalidInputError(
            f"ids of embedding {name}", received=f"{ids[0]} to {ids[-1]}", allowed=f"0 to {num_rows - 1}"
        )


def pad_to_power_of_two(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Returns rows followed by zeros, to a power of two in all, so that few different shapes are compiled.

    The result is aligned so that XLA uses it without a copy. XLA copies unaligned arrays, as most of NumPy's are.
    """
    num_rows = max(LEAST_ROWS, 1 << max(0, len(rows) - 1).bit_length())
    size_bytes = num_rows * math.prod(rows.shape[1:]) * rows.itemsize
    room = np.empty(size_bytes + ALIGNMENT, np.uint8)
    start = -room.ctypes.data % ALIGNMENT
    found = room[start : start + size_bytes].view(rows.dtype).reshape(num_rows, *rows.shape[1:])
    found[: len(rows)] = rows
    found[len(rows) :] = 0
    return found


def unique_with_inverse(ids: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns the distinct ids, and the index of each id among them.

    The same as ``numpy.unique`` with its inverse, in two thirds of the time: with id and index in one number, one sort
    is enough.

    Args:
        ids: int64[ids].

    Returns:
        int64[distinct], ascending, and int32[ids].
    """
    if len(ids) and not -(2**31) <= ids.min() <= ids.max() < 2**31:  # no table has such ids: `check_ids` raises
        found, inverse = np.unique(ids, return_inverse=True)
        return found, inverse.astype(np.int32)
    keys = (ids << 32) | np.arange(len(ids))
    keys.sort()
    ordered = keys >> 32
    is_first = np.ones(len(ids), np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=is_first[1:])
    indices = np.empty(len(ids), np.int32)
    indices[keys & 0xFFFFFFFF] = np.cumsum(is_first, dtype=np.int32) - 1
    return ordered[is_first], indices
