"""What coordinator, workers and servers say to one another, and what is in it; all is checked where it arrives.

A server is told what it keeps by `Setup`, that a training begins by ``begin``, its values come by ``write``, and a
worker shows by ``join`` that it runs the same model. From then on one exchange a step and server does all: a `Push`
takes the step's gradients there, and its answer brings the parameters for the next step back.

The coordinator sends each server ``watch``, which is answered at the end: a server that is lost is missed at once.

A checkpoint is a ``cut`` of each server at the same closure, which is then ``read`` in pieces
(`lockstep.parameter_server.chunks`) until its ``end``; ``restore`` brings such pieces back.
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
"""Arrays by dtype: a server's dense values."""
GRADIENTS: Final = "gradient."
"""What the kinds of dense gradients begin with; see `gradients_for`."""
INDICES: Final = "index."
"""What the kinds of the chosen gradients' indices begin with; see `indices_for`."""
IDS: Final = "ids"
"""Arrays by table: ids whose rows are pushed."""
ROWS: Final = "rows"
"""Arrays by table: gradients of the rows of ``ids``, or the values of those of ``wanted``."""
WANTED: Final = "wanted"
"""Arrays by table: ids whose rows are to be answered."""

Form = TypeVar("Form")


@final
class Mode(StrEnum):
    """When a server applies what is pushed."""

    ASYNCHRONOUS = "asynchronous"
    """As it arrives."""
    SYNCHRONOUS = "synchronous"
    """When as many workers as are expected have pushed for a step: the mean over their batches' rows."""


@final
@dataclass(frozen=True, kw_only=True)
class Group:
    """Variables that one optimizer trains.

    Attributes:
        variables: their indices in the placement's list.
        optimizer: the optimizer; None for those that what is pushed is added to.
        is_summed: whether what workers push for one synchronous step is added up, as counts are; else it is averaged.
    """

    variables: tuple[int, ...]
    optimizer: OptimizerSpec | None = None
    is_summed: bool = False

    def members(self, shards: Sequence[Shard]) -> list[int]:
        """Returns the indices of those of a server's shards that the group has."""
        chosen = set(self.variables)
        return [index for index, shard in enumerate(shards) if shard.variable in chosen]


@final
@dataclass(frozen=True, kw_only=True)
class TableSpec:
    """An embedding table over all servers.

    Row n is the server's whose index is n modulo the number of servers: rows that are often met lie on all of them.

    Attributes:
        name: its layer's path.
        num_rows: how many ids there are: 0 to this less one.
        num_columns: how many values a row has.
        values: its rows' first values.
        optimizer: how rows are updated.
    """

    name: str
    num_rows: int
    num_columns: int
    values: RowValues
    optimizer: RowOptimizer


@final
@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a server keeps, and how; the same for all servers but for their index.

    Attributes:
        placement: where all dense parameters are.
        groups: who trains what.
        tables: embedding tables.
        mode: when pushes are applied.
        server: which server it is told to.
    """

    placement: Placement
    groups: tuple[Group, ...]
    tables: tuple[TableSpec, ...] = ()
    mode: Mode = Mode.ASYNCHRONOUS
    server: int = 0

    @property
    def signature(self) -> str:
        """What processes that run the same model have alike."""
        return hashlib.sha256(_adapter(Setup).dump_json(replace(self, server=0))).hexdigest()


@final
class Packing(StrEnum):
    """How a group's gradients travel."""

    WHOLE = "whole"
    """As they are."""
    BFLOAT16 = "bfloat16"
    """As bfloat16."""
    TOP = "top"
    """The largest alone, with their indices among all of them: int32, rising."""


@final
@dataclass(frozen=True, kw_only=True)
class Part:
    """The dense gradients of a push that one group takes.

    Attributes:
        group: the group, by its index in the setup.
        has_gradient: for each of the group's shards on this server, whether there is a gradient; None where for all.
        packing: how they travel.
    """

    group: int = 0
    has_gradient: tuple[bool, ...] | None = None
    packing: Packing = Packing.WHOLE


@final
@dataclass(frozen=True, kw_only=True)
class Push:
    """The header of a step's gradients for one server, and of what is wanted back.

    Attributes:
        closure: the number of the closure that it belongs to.
        number: its index among the closure's pushes.
        parts: what the dense ones are of.
        step: the step that it is for, where steps are synchronous.
        num_rows: how many rows its batch had: what it weighs in the mean of a synchronous step.
        pulled_version: how many pushes the server had applied when the values that the gradients are of were pulled.
        watermark: closures below it have ended.
        is_answered_by_values: whether the answer is to bring the dense values.
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
        version: how many pushes the server has applied.
        step: how many steps it has done, where steps are synchronous.
        is_applied: whether the push counted: not where it had before, came late, or was one of those left out.
        was_applied: whether it had counted before, when another worker ran its closure, or this one pushed it first.
        staleness: how many pushes were applied between the pull and the push.
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
        first_closure: the lowest one that the server takes pushes of: what comes of an earlier training is below it.
    """

    first_closure: int


@final
@dataclass(frozen=True, kw_only=True)
class Expected:
    """How many workers' pushes make a synchronous step.

    Attributes:
        num_pushes: so many.
        step: the one that the coordinator is at: a server that waits for an earlier one goes on with this.
    """

    num_pushes: int
    step: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Awaited:
    """The answer to `Expected`.

    Attributes:
        num_left_out: how many steps the server has gone on without.
    """

    num_left_out: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Cut:
    """Says that a server is to keep what it holds once all pushes of closures below one are in, and no other.

    Attributes:
        closure: the one; it has not been given out yet.
        max_bytes: how much of it is read at a time.
    """

    closure: int
    max_bytes: int


@final
@dataclass(frozen=True, kw_only=True)
class Read:
    """Asks for the next piece of a cut.

    Attributes:
        watermark: closures below it have ended.
    """

    watermark: int = 0


@final
@dataclass(frozen=True, kw_only=True)
class Rate:
    """A learning rate that was set.

    Attributes:
        group: the group whose optimizer has it.
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
    """Returns a form, one of the dataclasses of a message's header, as a message's fields."""
    return _adapter(type(form)).dump_python(form, mode="json")


def from_fields(kind: type[Form], fields: Mapping[str, Any]) -> Form:
    """Reads a form from a message's fields.

    Raises:
        CorruptDataError: they are another form's.
    """
    try:
        return _adapter(kind).validate_python(dict(fields))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise CorruptDataError(f"a {kind.__name__} with a wrong {where}", received=first["msg"]) from None


def gradients_for(group: int) -> str:
    """Returns the kind of the arrays that are gradients for a group's shards, by dtype."""
    return f"{GRADIENTS}{group}"


def indices_for(group: int) -> str:
    """Returns the kind of the arrays that say which of a group's gradients travel, by dtype."""
    return f"{INDICES}{group}"


def named(kind: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns arrays with a kind before their names: "dense:float32"."""
    return {f"{kind}:{name}": array for name, array in arrays.items()}


def of_kind(kind: str, arrays: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
    """Returns the arrays of a kind by their names."""
    return {name[len(kind) + 1 :]: array for name, array in arrays.items() if name.startswith(f"{kind}:")}
