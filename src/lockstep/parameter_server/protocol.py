"""The messages between coordinator, workers and servers. The receiver validates every message.

A server receives `Setup` (what it keeps), ``begin`` (a training begins) and ``write`` (its values). A worker sends
``join`` to show that it runs the same model. From then on, a step needs one exchange with each server: a `Push` carries
the step's gradients to the server, and the answer brings back the parameters for the next step.

The coordinator sends each server ``watch``, which is answered only at the end, so that a lost server is noticed at
once.

A checkpoint is a ``cut`` of each server at the same closure. The cut is ``read`` in chunks
(`lockstep.parameter_server.chunks`) and released by ``end``. ``restore`` sends such chunks back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any, Final, TypeVar, final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from lockstep.errors import CorruptDataError
from lockstep.parameter_server.optimizers import OptimizerSpec
from lockstep.parameter_server.placement import Placement, Shard
from lockstep.parameter_server.row_optimizers import RowOptimizer
from lockstep.strategies.table_rows import RowValues

SETUP: Final = "setup"
BEGIN: Final = "begin"
WRITE: Final = "write"
JOIN: Final = "join"
PUSH: Final = "push"
PULL: Final = "pull"
EXPECT: Final = "expect"
CUT: Final = "cut"
READ: Final = "read"
END: Final = "end"
RESTORE: Final = "restore"
RATE: Final = "rate"
STATE: Final = "state"
WATCH: Final = "watch"
CLEAR: Final = "clear"
DONE: Final = "done"

DENSE: Final = "dense"
"""Arrays by dtype: the dense values of a server."""
GRADIENTS: Final = "gradient."
"""The prefix of the kinds of dense gradients; see `gradients_for`."""
INDICES: Final = "index."
"""The prefix of the kinds of indices of selected gradients; see `indices_for`."""
IDS: Final = "ids"
"""Arrays by table: the ids whose rows are pushed."""
ROWS: Final = "rows"
"""Arrays by table: the gradients of the rows of ``ids``, or the values of the rows of ``wanted``."""
WANTED: Final = "wanted"
"""Arrays by table: the ids whose rows the answer should have."""

Form = TypeVar("Form")


@final
class Mode(StrEnum):
    """When a server applies pushes."""

    ASYNCHRONOUS = "asynchronous"
    """Each push as it arrives."""
    SYNCHRONOUS = "synchronous"
    """Once the expected number of workers have pushed for a step: their mean, weighted by the rows of their batches."""


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """Variables that are updated together: by one optimizer, or by none.

    Attributes:
        variables: their indices in the placement's list.
        optimizer: the optimizer that trains them; None if pushed values are added to them.
        is_summed: whether the pushes for one synchronous step are summed, as counts are, instead of averaged.
    """

    variables: tuple[int, ...]
    optimizer: OptimizerSpec | None = None
    is_summed: bool = False

    def members(self, shards: Sequence[Shard]) -> list[int]:
        """Returns the indices of those of a server's shards that belong to the group."""
        chosen = set(self.variables)
        return [index for index, shard in enumerate(shards) if shard.variable in chosen]


@final
@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """An embedding table over all servers.

    Row n belongs to the server with the index n modulo the number of servers. This spreads frequent rows over all
    servers.

    Attributes:
        name: the path of its layer.
        num_rows: the number of ids: they are 0 to num_rows - 1.
        num_columns: the number of values in a row.
        values: the first values of its rows.
        optimizer: the optimizer of its rows.
    """

    name: str
    num_rows: int
    num_columns: int
    values: RowValues
    optimizer: RowOptimizer


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a server keeps, and how. The same for all servers except for `server`.

    Attributes:
        placement: the placement of all dense parameters.
        groups: the groups of variables, with their optimizers.
        tables: the embedding tables.
        mode: when pushes are applied.
        server: the index of the server that receives this.
    """

    placement: Placement
    groups: tuple[Group, ...]
    tables: tuple[TableSpec, ...] = ()
    mode: Mode = Mode.ASYNCHRONOUS
    server: int = 0

    @property
    def signature(self) -> str:
        """A digest that is equal in processes that run the same model."""
        return hashlib.sha256(_adapter(Setup).dump_json(replace(self, server=0))).hexdigest()


@final
class Packing(StrEnum):
    """How the gradients of a group are encoded in a push."""

    WHOLE = "whole"
    """Unchanged."""
    BFLOAT16 = "bfloat16"
    """As bfloat16."""
    TOP = "top"
    """Only the largest, with their indices among all gradients: int32, ascending."""


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """The dense gradients of a push for one group.

    Attributes:
        group: the index of the group in the setup.
        has_gradient: for each of the group's shards on this server, whether there is a gradient; None if there is one
            for each.
        packing: how the gradients are encoded.
    """

    group: int = 0
    has_gradient: tuple[bool, ...] | None = None
    packing: Packing = Packing.WHOLE


@final
@dataclass(frozen=True, kw_only=True)
class Push:
    """The header of a step's gradients for one server, and of the request for new values.

    Attributes:
        closure: the number of the closure that the push belongs to.
        number: the index of the push among those of its closure.
        parts: the groups that the dense gradients are for.
        step: the step that the push is for, if steps are synchronous.
        num_rows: the number of rows in the batch: the weight of the push in the mean of a synchronous step.
        pulled_version: the number of pushes that the server had applied when the values behind the gradients were
            pulled.
        watermark: the lowest closure that may still run. All closures below it have ended.
        is_answered_by_values: whether the answer should have the dense values.
    """

    closure: int
    number: int = 0
    parts: tuple[Part, ...] = ()
    step: int = 0
    num_rows: int = 1
    pulled_version: int = 0
    watermark: int = 0
    is_answered_by_values: bool = True


@final
@dataclass(frozen=True, kw_only=True)
class Pushed:
    """The header of the answer to a push or a pull.

    Attributes:
        version: the number of pushes that the server has applied.
        step: the number of steps that the server has done, if steps are synchronous.
        is_applied: whether the push counted. False if it had been applied before, came too late, or was left out of its
            step.
        was_applied: whether the push had been applied before, because another worker ran its closure or this worker
            pushed it earlier.
        staleness: the number of pushes that were applied between the pull and the push.
    """

    version: int
    step: int = 0
    is_applied: bool = True
    was_applied: bool = False
    staleness: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Begun:
    """The answer to a coordinator that begins a training.

    Attributes:
        first_closure: the lowest closure whose pushes the server accepts. Pushes of an earlier training are below it.
    """

    first_closure: int


@final
@dataclass(frozen=True, kw_only=True)
class Expected:
    """The number of pushes that make up a synchronous step.

    Attributes:
        num_pushes: the number of pushes.
        step: the step that the coordinator is at. A server that still collects an earlier step skips to this one.
    """

    num_pushes: int
    step: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Awaited:
    """The answer to `Expected`.

    Attributes:
        num_skipped_steps: the number of steps that the server has skipped.
    """

    num_skipped_steps: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Cut:
    """Requests a cut: the state with all pushes of closures below one closure, and no other pushes.

    Attributes:
        closure: that closure. It has not been assigned to a worker yet.
        max_bytes: the maximum size of the chunks that the cut is read in, in bytes.
    """

    closure: int
    max_bytes: int


@final
@dataclass(frozen=True, kw_only=True)
class Read:
    """Requests the next chunk of a cut.

    Attributes:
        watermark: the lowest closure that may still run. All closures below it have ended.
    """

    watermark: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Rate:
    """A new learning rate.

    Attributes:
        group: the group whose optimizer it is for.
        learning_rate: the rate.
        tables: the names of the tables whose rows it is for as well.
    """

    group: int
    learning_rate: float
    tables: tuple[str, ...] = ()


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def to_fields(form: Any) -> dict[str, Any]:
    """Returns the fields of a message for a form: one of the dataclasses of message headers."""
    return _adapter(type(form)).dump_python(form, mode="json")


def from_fields(kind: type[Form], fields: Mapping[str, Any]) -> Form:
    """Reads a form from the fields of a message.

    Raises:
        CorruptDataError: the fields are not of that form.
    """
    try:
        return _adapter(kind).validate_python(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptDataError(f"a {kind.__name__} with a wrong {where}", received=first["msg"]) from None


def gradients_for(group: int) -> str:
    """Returns the kind of the arrays with a group's gradients, by dtype."""
    return f"{GRADIENTS}{group}"


def indices_for(group: int) -> str:
    """Returns the kind of the arrays with the indices of the selected gradients of a group, by dtype."""
    return f"{INDICES}{group}"


def named(kind: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns arrays with their kind before their names, such as "dense:float32"."""
    return {f"{kind}:{name}": array for name, array in arrays.items()}


def of_kind(kind: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of one kind by their names, without the kind."""
    return {name[len(kind) + 1 :]: array for name, array in arrays.items() if name.startswith(f"{kind}:")}
