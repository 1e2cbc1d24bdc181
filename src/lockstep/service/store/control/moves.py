"""What the database keeps of replicas that went on alone on another machine, and where each was when."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, final

from pydantic import TypeAdapter


@final
@dataclass(frozen=True, kw_only=True)
class Move:
    """That a replica lost its machine while the rest of its gang ran on.

    Attributes:
        replica: its name.
        machine: the machine that it lost, by its name in the ledger.
        lost_time_s: when, seconds since 1970 UTC.
        time_s: when it was given another one; None while it waits for it.
    """

    replica: str
    machine: str
    lost_time_s: float
    time_s: float | None = None


MOVES: Final = TypeAdapter(tuple[Move, ...])
"""Reads and writes moves as JSON."""


@final
@dataclass(frozen=True, kw_only=True)
class Stay:
    """A while that a replica had a machine.

    Attributes:
        machine: the machine, by its name in the ledger; "" where nodes do not come and go.
        start_time_s: when it began, seconds since 1970 UTC.
        end_time_s: when it ended; not before it began.
    """

    machine: str
    start_time_s: float
    end_time_s: float


def stays(
    replica: str, *, machine: str, moves: Sequence[Move], start_time_s: float, end_time_s: float
) -> Iterator[Stay]:
    """Yields where a replica was in a start of its gang, in order; nothing of the time that it waited for a machine.

    Args:
        replica: its name.
        machine: the machine that it had last.
        moves: those of its gang's replicas, in order.
        start_time_s: when the start became RUNNING, seconds since 1970 UTC.
        end_time_s: when it ended.
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
