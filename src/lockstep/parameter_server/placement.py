"""Decides which server keeps which part of which variable: once, and purely from what all processes know."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, final

from lockstep.errors import InvalidInputError, counted
from lockstep.parameter_server.partitioners import item_bytes, shard_bounds

Partitioner: TypeAlias = Callable[[Sequence[int], str], Sequence[int]]
"""Returns the number of parts along each dimension of a shape and dtype; see `AbstractPartitioner`."""


@final
@dataclass(frozen=True, kw_only=True)
class VariableSpec:
    """What must be known of a variable to place it.

    Attributes:
        path: its unique name.
        shape: its shape.
        dtype: the name of its dtype.
        is_whole: whether it must not be cut, because its optimizer needs all of its values.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    is_whole: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a variable, along its first dimension, and its location.

    Attributes:
        variable: the index of the variable in the list of placed variables.
        start: its first row.
        end: the row after its last one. A scalar counts as one row.
        server: the index of its server.
        offset: the index of its first value in the server's buffer for its dtype.
        size: its number of values.
    """

    variable: int
    start: int
    end: int
    server: int
    offset: int
    size: int


@final
@dataclass(frozen=True, kw_only=True)
class Placement:
    """The placement of all variables on all servers.

    A server keeps its shards of one dtype one after the other in one buffer, so that all of them are sent at once.

    Attributes:
        variables: the placed variables.
        num_servers: the number of servers.
        shards: the shards in the order of the variables; those of one variable in the order of their rows.
    """

    variables: tuple[VariableSpec, ...]
    num_servers: int
    shards: tuple[Shard, ...]

    @cached_property
    def by_server(self) -> tuple[tuple[Shard, ...], ...]:
        """The shards of each server, in their order in its buffers."""
        return tuple(
            tuple(shard for shard in self.shards if shard.server == server) for server in range(self.num_servers)
        )

    @cached_property
    def by_variable(self) -> tuple[tuple[Shard, ...], ...]:
        """The shards of each variable, in the order of their rows."""
        found: list[list[Shard]] = [[] for _ in self.variables]
        for shard in self.shards:
            found[shard.variable].append(shard)
        return tuple(map(tuple, found))

    def buffer_sizes(self, server: int) -> dict[str, int]:
        """Returns the number of values of each dtype that a server keeps."""
        sizes: dict[str, int] = {}
        for shard in self.by_server[server]:
            dtype = self.variables[shard.variable].dtype
            sizes[dtype] = sizes.get(dtype, 0) + shard.size
        return sizes

    def shard_shape(self, shard: Shard) -> tuple[int, ...]:
        """Returns the shape of a shard."""
        shape = self.variables[shard.variable].shape
        return (shard.end - shard.start, *shape[1:]) if shape else ()

    def server_bytes(self, server: int) -> int:
        """Returns the size of a server's parameters in memory, in bytes."""
        return sum(size * item_bytes(dtype) for dtype, size in self.buffer_sizes(server).items())


def place(
    variables: Sequence[VariableSpec],
    *,
    num_servers: int,
    partitioner: Partitioner | None = None,
    num_with_rows: int = 0,
) -> Placement:
    """Decides which server keeps each variable or shard.

    Variables that are not cut, and the shards of those that are, are placed from the largest to the smallest, each on
    the server that has the fewest bytes so far. This puts the shards of one variable on different servers while there
    are any.

    Args:
        variables: the variables, in an order that all processes agree on.
        num_servers: the number of servers.
        partitioner: the function that decides into how many shards a variable is cut; None to cut none.
        num_with_rows: the number of servers, counted from the first, that keep rows of tables and so need no variables.
            It may be larger than `num_servers`.

    Raises:
        InvalidInputError: two variables have the same path, the partitioner cuts along a dimension other than the
            first, it cuts into more shards than there are rows, or a server would have nothing to keep.
    """
    check_paths(variable.path for variable in variables)
    parts: list[tuple[int, int, int]] = []
    for index, variable in enumerate(variables):
        num_shards = _num_shards(variable, partitioner)
        bounds = shard_bounds(variable.shape[0] if variable.shape else 1, num_shards=num_shards)
        parts += [(index, start, end) for start, end in bounds]
    servers = _choose_servers(parts, variables=variables, num_servers=num_servers)
    empty = sorted(set(range(num_with_rows, num_servers)) - set(servers))
    if empty:
        raise InvalidInputError(
            f"parameter server {empty[0]} would have nothing to keep",
            received=f"{counted(len(variables), 'variable')} in {counted(len(parts), 'shard')} over "
            f"{counted(num_servers, 'server')}",
            action="use fewer servers, or a variable_partitioner that cuts into more shards",
        )
    filled: dict[tuple[int, str], int] = {}
    shards: list[Shard] = []
    for (index, start, end), server in zip(parts, servers, strict=True):
        variable = variables[index]
        size = math.prod(variable.shape[1:]) * (end - start)
        offset = filled.get((server, variable.dtype), 0)
        filled[server, variable.dtype] = offset + size
        shards.append(Shard(variable=index, start=start, end=end, server=server, offset=offset, size=size))
    return Placement(variables=tuple(variables), num_servers=num_servers, shards=tuple(shards))


def _choose_servers(
    parts: Sequence[tuple[int, int, int]], *, variables: Sequence[VariableSpec], num_servers: int
) -> list[int]:
    def part_bytes(number: int) -> int:
        index, start, end = parts[number]
        variable = variables[index]
        return math.prod(variable.shape[1:]) * (end - start) * item_bytes(variable.dtype)

    loads = [(0, 0)] * num_servers  # bytes and number of parts: the number spreads parts of size 0
    chosen = [0] * len(parts)
    for number in sorted(range(len(parts)), key=lambda number: (-part_bytes(number), number)):
        server = min(range(num_servers), key=lambda server: (*loads[server], server))
        chosen[number] = server
        loads[server] = (loads[server][0] + part_bytes(number), loads[server][1] + 1)
    return chosen


def _num_shards(variable: VariableSpec, partitioner: Partitioner | None) -> int:
    if partitioner is None or variable.is_whole or not variable.shape:
        return 1
    given = list(partitioner(variable.shape, variable.dtype))
    try:
        parts = list(map(operator.index, given))  # accepts NumPy's integers too
    except TypeError:
        raise InvalidInputError(
            f"the partitioner's answer for {variable.path} of shape {variable.shape}",
            received=given,
            allowed="integers",
        ) from None
    if len(parts) != len(variable.shape) or any(number != 1 for number in parts[1:]):
        raise InvalidInputError(
            f"the partitioner's answer for {variable.path} of shape {variable.shape}",
            received=parts,
            allowed="a number for each dim, all but the first one 1: parameters are cut along their first dim",
        )
    most = max(1, variable.shape[0])
    if not 1 <= parts[0] <= most:
        raise InvalidInputError(
            f"the partitioner's answer for {variable.path} of shape {variable.shape}",
            received=parts,
            allowed=f"1 to {most} shards: each has a row",
        )
    return parts[0]


def check_paths(paths: Iterable[str]) -> None:
    """Checks that no two variables, or tables, have the same path.

    Raises:
        InvalidInputError: two of them have the same path.
    """
    seen: set[str] = set()
    for path in paths:
        if path in seen:
            raise InvalidInputError(
                "two variables have one path, by which the servers know them",
                received=path,
                action="give their layers different names",
            )
        seen.add(path)
