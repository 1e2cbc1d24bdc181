"""Records of replicas that moved to another machine while their gang continued, and where each replica was when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from pydantic import TypeAdapter


@final
@dataclass(frozen=True, kw_only=True)
class Move:
    """A move of a replica that lost its machine while the rest of its gang continued.

    Attributes:
        replica: the name of the replica.
        machine: the name in the ledger of the machine that it lost.
        lost_time_s: the time of the loss, in seconds since 1970 UTC.
        time_s: the time when it received another machine; None while it waits for one.
    """

    replica: str
    machine: str
    lost_time_s: float
    time_s: float | None = None


MOVES: Final = TypeAdapter(tuple[Move, ...])
"""Parses and serializes moves as JSON."""


@final
@dataclass(frozen=True, kw_only=True)
class Stay:
    """An interval in which a replica had a machine.

    Attributes:
        machine: the name of the machine in the ledger; "" if the nodes are not in the ledger.
        start_time_s: the start, in seconds since 1970 UTC.
        end_time_s: the end; never before the start.
    """

    machine: str
    start_time_s: float
    end_time_s: float


def machine_stays(
    replica: str, *, machine: str, moves: Sequence[Move], start_time_s: float, end_time_s: float
) -> Iterator[Stay]:
    """Yields the stays of a replica in an attempt, in order. The time that it waited for a machine is in none of them.

    Args:
        replica: the name of the replica.
        machine: the last machine of the replica.
        moves: the moves of all replicas of the gang, in order.
        start_time_s: the time when the attempt became RUNNING, in seconds since 1970 UTC.
        end_time_s: the end of the attempt.
    """
    since_s: float | None = start_time_s
    for move in moves:
        if move.replica != replica or since_s is None:
            continue
        until_s = min(move.lost_time_s, end_time_s)
        if since_s < until_s:
            yield Stay(machine=move.machine, start_time_s=since_s, end_time_s=until_s)
        since_s = None if move.time_s is None else max(move.time_s, start_time_s)
    if since_s is not None:
        yield Stay(machine=machine, start_time_s=since_s, end_time_s=max(since_s, end_time_s))
