"""Which server has which part of which variable: decided once, purely, from what all processes know alike."""

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
"""Returns the number of parts of each dim of a shape and dtype; see `AbstractPartitioner`."""


@final
@dataclass(frozen=True, kw_only=True)
class VariableSpec:
    """What has to be known of a variable to place it.

    Attributes:
        path: its name, which no other one has.
        shape: its shape.
        dtype: the name of its dtype.
        is_whole: whether it must not be cut: its optimizer looks at all of it.
    """

    path: str
    shape: tuple[int, ...]
    dtype: str
    is_whole: bool = False


@final
@dataclass(frozen=True, kw_only=True)
class Shard:
    """A part of a variable, along its first dim, and where it is.

    Attributes:
        variable: the variable's index in the list that was placed.
        start: its first row.
        end: the row after its last one. A scalar is one row.
        server: the index of its server.
        offset: its first value's index in its server's buffer of its dtype.
        size: how many values it has.
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
    """All variables over all servers.

    A server keeps its shards of one dtype one after the other in one buffer, so that all of them travel at once.

    Attributes:
        variables: what was placed.
        num_servers: over how many servers.
        shards: in the variables' order, each one's in the order of their rows.
    """

    variables: tuple[VariableSpec, ...]
    num_servers: int
    shards: tuple[Shard, ...]

    @cached_property
    def by_server(self) -> tuple[tuple[Shard, ...], ...]:
        """Each server's shards, in the order in which they lie in its buffers."""
        return tuple(
            tuple(shard for shard in self.shards if shard.server == server) for server in range(self.num_servers)
        )

    @cached_property
    def by_variable(self) -> tuple[tuple[Shard, ...], ...]:
        """Each variable's shards, in the order of their rows."""
        found: list[list[Shard]] = [[] for _ in self.variables]
        for shard in self.shards:
            found[shard.variable].append(shard)
        return tuple(map(tuple, found))

    def buffer_sizes(self, server: int) -> dict[str, int]:
        """Returns how many values of each dtype a server has."""
        sizes: dict[str, int] = {}
        for shard in self.by_server[server]:
            dtype = self.variables[shard.variable].dtype
            sizes[dtype] = sizes.get(dtype, 0) + shard.size
        return sizes

    def shard_shape(self, shard: Shard) -> tuple[int, ...]:
        """Returns the shape of a part of a variable."""
        shape = self.variables[shard.variable].shape
        return (shard.end - shard.start, *shape[1:]) if shape else ()

    def server_bytes(self, server: int) -> int:
        """Returns how much memory a server's parameters take."""
        return sum(size * item_bytes(dtype) for dtype, size in self.buffer_sizes(server).items())


def place(
    variables: Sequence[VariableSpec],
    *,
    num_servers: int,
    partitioner: Partitioner | None = None,
    num_with_rows: int = 0,
) -> Placement:
    """Decides where each variable goes.

    What is not cut goes whole: the largest first, each to the server with the least so far. So do the shards of what is
    cut, each to another server as long as there are others.

    Args:
        variables: in an order that all processes agree on.
        num_servers: how many servers there are.
        partitioner: says into how many shards a variable is cut; None cuts none.
        num_with_rows: how many servers, from the first one on, keep rows of tables, and need no variables.

    Raises:
        InvalidInputError: two variables have one path; the partitioner cuts along another dim than the first, or into
            more shards than there are rows; a server would have nothing.
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

    loads = [(0, 0)] * num_servers  # bytes, and how many parts: those without a size are spread as well
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
        parts = list(map(operator.index, given))  # of NumPy's whole numbers too
    except TypeError:
        raise InvalidInputError(
            f"the partitioner's answer for {variable.path} of shape {variable.shape}",
            received=given,
            allowed="whole numbers",
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
    """Checks that no two variables, or tables, have one path.

    Raises:
        InvalidInputError: two have.
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
