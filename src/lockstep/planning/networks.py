"""The time of an all-reduce over chips of several hosts, from the latency and the bandwidth of their links.

A message of n bytes takes ``latency + n / bandwidth`` (R. Thakur et al., "Optimization of collective communication
operations in MPICH", 2005). The algorithms are those of the libraries that frameworks use:

- a ring;
- a pair of trees (P. Sanders et al., "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009; NCCL
  has them since 2.4);
- a hierarchy: a reduce-scatter within each host, an all-reduce between hosts, an all-gather within each host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from lockstep.errors import InvalidInputError

EFFICIENCY: Final = 0.8
"""The share of a link's published bandwidth that a collective reaches."""


@final
@dataclass(frozen=True, kw_only=True)
class Network:
    """Chips in groups with fast links, and slower links between the groups. A group is a host, or a TPU slice.

    Attributes:
        chips_per_group: the number of chips of a group.
        inner_bytes_per_s: the bandwidth of a chip within its group, in one direction, in bytes per second.
        outer_bytes_per_s: the bandwidth of a whole group to other groups, in one direction, in bytes per second.
        inner_latency_s: the time of an empty message within a group, in seconds.
        outer_latency_s: the time of an empty message between groups, in seconds.
        efficiency: the share of the bandwidths that a collective reaches.
        inner_dims: the number of dimensions of the torus within a group; 1 for a ring or a switch. A reduction goes
            along each of them in turn, so that it passes fewer chips.
    """

    chips_per_group: int
    inner_bytes_per_s: float
    outer_bytes_per_s: float
    inner_latency_s: float = 3e-6
    outer_latency_s: float = 10e-6
    efficiency: float = EFFICIENCY
    inner_dims: int = 1

    def inner_hops(self, num_chips: int) -> float:
        """Returns the number of links that a reduction passes one after the other within a group of so many chips."""
        inside = min(num_chips, self.chips_per_group)
        return self.inner_dims * (inside ** (1 / self.inner_dims) - 1)

    def num_groups(self, num_chips: int) -> int:
        """Returns the number of groups of so many chips."""
        return math.ceil(num_chips / self.chips_per_group)

    @property
    def inner(self) -> float:
        """The bandwidth within a group that a collective reaches, in bytes per second."""
        return self.inner_bytes_per_s * self.efficiency

    @property
    def outer(self) -> float:
        """The bandwidth between groups that a collective reaches, in bytes per second."""
        return self.outer_bytes_per_s * self.efficiency


def _ring_s(num_bytes: float, num_chips: int, network: Network) -> float:
    several = network.num_groups(num_chips) > 1
    # The ring leaves each group once, so a group's link carries what one chip sends.
    bandwidth = min(network.inner, network.outer) if several else network.inner
    latency_s = network.outer_latency_s if several else network.inner_latency_s
    return 2 * (num_chips - 1) * latency_s + 2 * (num_chips - 1) / num_chips * num_bytes / bandwidth


def _tree_s(num_bytes: float, num_chips: int, network: Network) -> float:
    num_groups = network.num_groups(num_chips)
    bandwidth = min(network.inner, network.outer) if num_groups > 1 else network.inner
    latency_s = (
        network.inner_hops(num_chips) * network.inner_latency_s
        + math.ceil(math.log2(num_groups)) * network.outer_latency_s
    )
    return 2 * latency_s + 2 * num_bytes / bandwidth


def _hierarchy_s(num_bytes: float, num_chips: int, network: Network) -> float:
    num_groups, inside = network.num_groups(num_chips), min(num_chips, network.chips_per_group)
    within_s = (
        2 * network.inner_hops(num_chips) * network.inner_latency_s
        + 2 * (inside - 1) / inside * num_bytes / network.inner
    )
    if num_groups == 1:
        return within_s
    # Each chip of a group reduces its part with its counterparts; all parts together pass the group's link.
    rounds = min(num_groups - 1, math.ceil(math.log2(num_groups)))
    between_s = 2 * rounds * network.outer_latency_s + 2 * (num_groups - 1) / num_groups * num_bytes / network.outer
    return within_s + between_s


ALGORITHMS: Final[Mapping[str, Callable[[float, int, Network], float]]] = MappingProxyType(
    {"ring": _ring_s, "tree": _tree_s, "hierarchical": _hierarchy_s}
)
"""The functions of bytes, chips and network that return the time of an all-reduce, by the name of the algorithm."""


def all_reduce_s(num_bytes: float, *, num_chips: int, network: Network, algorithm: str | None = None) -> float:
    """Returns the time of an all-reduce in seconds.

    Args:
        num_bytes: the size of the array that each chip has, in bytes.
        num_chips: the number of chips.
        network: their links.
        algorithm: a name of `ALGORITHMS`; None for the fastest one, which communication libraries choose by size.

    Raises:
        InvalidInputError: there is no such algorithm.
    """
    if algorithm is not None and algorithm not in ALGORITHMS:
        raise InvalidInputError("an all-reduce algorithm", received=algorithm, allowed=list(ALGORITHMS))
    if num_chips == 1 or not num_bytes:
        return 0.0
    chosen = ALGORITHMS.values() if algorithm is None else [ALGORITHMS[algorithm]]
    return min(time_of(num_bytes, num_chips, network) for time_of in chosen)
