"""Tracks nodes and their free resources. Equal nodes are grouped, so searching thousands costs as much as one."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter, sub
from typing import NamedTuple, final

from lockstep.errors import ConfigError, ConflictError
from lockstep.jobs.scheduling.demands import Demand, NodeSpec

Vector = tuple[int, ...]
"""Amounts, in the order of the scheduler's resource names."""


class Allocation(NamedTuple):
    """What one gang holds, or will hold, of one node."""

    node: str
    """The name of the node."""
    demand: int
    """The index of the demand among the gang's demands."""
    number: int
    """The number of the demand's replicas on this node."""
    amount: Vector
    """The amounts that each replica takes."""


class _Kind(NamedTuple):
    """The properties by which nodes of a type are grouped: nodes of one kind are interchangeable."""

    is_down: bool
    claim: str
    free: Vector


@final
@dataclass(kw_only=True, slots=True)
class Node:
    """One node.

    Attributes:
        spec: the specification of the node.
        total: the total resources of the node.
        free: the free resources of the node.
        claim: the uid of the job that a part of the node is promised to; "" if there is none.
    """

    spec: NodeSpec
    total: Vector
    free: Vector
    claim: str = ""


@lru_cache(maxsize=1 << 16)
def fit_count(free: Vector, amount: Vector) -> int:
    """Returns how many replicas with an amount fit into the free resources; 2**30 if the amount is zero."""
    count = 1 << 30
    for have, need in zip(free, amount, strict=True):
        if need:
            if have < need:
                return 0
            count = min(count, have // need)
    return count


@lru_cache(maxsize=1 << 14)
def _times(amount: Vector, count: int) -> Vector:
    return tuple(count * need for need in amount)


def minus(free: Vector, amount: Vector, *, count: int) -> Vector:
    """Returns the resources that remain after a number of replicas take their amount."""
    return tuple(map(sub, free, _times(amount, count)))


@lru_cache(maxsize=1 << 16)
def _remaining(free: Vector, amount: Vector, count: int) -> Vector:
    return minus(free, amount, count=count)


@final
class Nodes:
    """All nodes, grouped by type and by free resources.

    Args:
        resource_names: the resources that count, the scarcest first: a replica goes where it leaves the least of them
            unused.
        num_accelerators: the number of these resources, from the first, that are accelerators. Nodes with accelerators
            are reserved for replicas that need them.
    """

    def __init__(self, resource_names: Sequence[str], *, num_accelerators: int = 0) -> None:
        self._names = tuple(resource_names)
        self._num_kept = num_accelerators
        self._nodes: dict[str, Node] = {}
        self._kinds: dict[str, dict[_Kind, dict[str, None]]] = {}
        self._totals: dict[str, dict[Vector, int]] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._nodes

    def __getitem__(self, name: str) -> Node:
        return self._nodes[name]

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the resources that count."""
        return self._names

    def vector(self, resources: Iterable[tuple[str, int]]) -> Vector:
        """Returns amounts by name as a vector.

        Raises:
            ConfigError: If a name is not one of the resources that count.
        """
        amounts = dict.fromkeys(self._names, 0)
        for name, amount in resources:
            if name not in amounts:
                raise ConfigError("a replica needs a resource that no node has", received=name, allowed=self._names)
            amounts[name] = amount
        return tuple(amounts.values())

    def add(self, spec: NodeSpec) -> bool:
        """Adds a node with all its resources free; returns whether it is the first of its type and size.

        Raises:
            ConflictError: If there is already a node with this name.
        """
        if spec.name in self._nodes:
            raise ConflictError(f"there is a node {spec.name!r} already")
        total = self.vector(spec.resources.items())
        node = Node(spec=spec, total=total, free=total)
        self._nodes[spec.name] = node
        self._index(node)
        totals = self._totals.setdefault(spec.node_type, {})
        totals[total] = totals.get(total, 0) + 1
        return totals[total] == 1

    def remove(self, name: str) -> bool:
        """Removes a node with everything held of it; returns whether it was the last of its type and size."""
        node = self._nodes.pop(name)
        self._unindex(node)
        totals = self._totals[node.spec.node_type]
        totals[node.total] -= 1
        if totals[node.total]:
            return False
        del totals[node.total]
        if not totals:
            del self._totals[node.spec.node_type]
        return True

    def without_allocations(self) -> Nodes:
        """Returns the same nodes with no allocations and no promises."""
        alone = Nodes(self._names, num_accelerators=self._num_kept)
        for node in self:
            alone.add(node.spec)
        return alone

    def replace_spec(self, spec: NodeSpec) -> None:
        """Replaces the specification of a node, which may change whether it is up."""
        node = self._nodes[spec.name]
        self._unindex(node)
        node.spec = spec
        self._index(node)

    def types(self, demand: Demand, amount: Vector) -> frozenset[str]:
        """Returns the node types that a replica may be placed on.

        Those are the types of which an empty node has room for the replica. Types with accelerators that the replica
        does not need are left to other replicas, unless there are no other types, or the demand names them.
        """
        named = {
            kind: [total for total in self._totals.get(kind, ()) if fit_count(total, amount)]
            for kind in demand.node_types or self._totals
        }
        fitting = {kind: totals for kind, totals in named.items() if totals}
        plain = [kind for kind, totals in fitting.items() if not any(self._is_wasted(t, amount) for t in totals)]
        return frozenset(fitting if demand.node_types or not plain else plain)

    def _is_wasted(self, total: Vector, amount: Vector) -> bool:
        """Returns whether a node has accelerators of a type that a replica does not need."""
        kept = self._num_kept
        return any(have and not need for have, need in zip(total[:kept], amount[:kept], strict=True))

    def max_replicas(self, types: Iterable[str], amount: Vector) -> int:
        """Returns how many replicas with an amount would fit if nothing else ran."""
        totals = (self._totals.get(node_type, {}) for node_type in types)
        return sum(number * fit_count(total, amount) for by_total in totals for total, number in by_total.items())

    def take(self, allocations: Iterable[Allocation]) -> None:
        """Subtracts allocations from the free resources."""
        for allocation in allocations:
            self._change(self._nodes[allocation.node], -allocation.number, allocation.amount)

    def release(self, allocations: Iterable[Allocation]) -> None:
        """Adds allocations to the free resources again. Allocations on removed nodes are ignored."""
        for allocation in allocations:
            if allocation.node in self._nodes:
                self._change(self._nodes[allocation.node], allocation.number, allocation.amount)

    def claim(self, name: str, uid: str) -> None:
        """Records the job that a node is promised to; "" for none."""
        node = self._nodes[name]
        self._unindex(node)
        node.claim = uid
        self._index(node)

    def room(self, types: Iterable[str], amount: Vector) -> int:
        """Returns how many replicas with an amount fit now, regardless of promises."""
        return sum(
            len(names) * count
            for node_type in types
            for kind, names in self._kinds.get(node_type, {}).items()
            if (count := fit_count(kind.free, amount))
        )

    def candidates(
        self, types: Iterable[str], amount: Vector, *, count: int, passed_over: Container[str] = ()
    ) -> list[tuple[Node, int]]:
        """Returns nodes, each with the number of replicas that fit on it, in the order of preference.

        Nodes that are promised to a job come last, and nodes that are up come before the others. Otherwise, the
        tightest fit comes first; if several are equally tight, the node that has room for more replicas. Of equal
        nodes, no more are listed than are needed for all replicas; of equal promised nodes, all are listed.

        Args:
            types: the allowed node types.
            amount: the amounts that each replica takes.
            count: the number of replicas to place.
            passed_over: the uids of jobs whose promised nodes are left out.
        """
        found: list[tuple[tuple[bool, bool, Vector, int, str], dict[str, None]]] = []
        for node_type in types:
            for kind, names in self._kinds.get(node_type, {}).items():
                fits = fit_count(kind.free, amount)
                if fits and kind.claim not in passed_over:
                    left = _remaining(kind.free, amount, min(fits, count))
                    found.append(((bool(kind.claim), kind.is_down, left, -fits, node_type), names))
        found.sort(key=itemgetter(0))
        listed: list[tuple[Node, int]] = []
        for (is_claimed, _, _, minus_fits, _), names in found:
            fits, missing = -minus_fits, count
            for name in names:
                listed.append((self._nodes[name], fits))
                missing -= 0 if is_claimed else fits
                if missing <= 0:
                    break
        return listed

    def _change(self, node: Node, sign: int, amount: Vector) -> None:
        self._unindex(node)
        node.free = minus(node.free, amount, count=-sign)
        self._index(node)

    def _index(self, node: Node) -> None:
        kind = _Kind(not node.spec.is_up, node.claim, node.free)
        self._kinds.setdefault(node.spec.node_type, {}).setdefault(kind, {})[node.spec.name] = None

    def _unindex(self, node: Node) -> None:
        kinds = self._kinds[node.spec.node_type]
        kind = _Kind(not node.spec.is_up, node.claim, node.free)
        names = kinds[kind]
        del names[node.spec.name]
        if not names:
            del kinds[kind]
            if not kinds:
                del self._kinds[node.spec.node_type]
