"""Computes the least time that a step can take on a chip, from the step's work and the chip's published figures.

This is a floor, not a forecast: compute, memory and interconnect can work at the same time, and a step is at least as
slow as the slowest of the three (S. Williams et al., "Roofline: an insightful visual performance model", CACM 52(4),
2009). In practice none of them reaches its peak.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lockstep.planning.chips import Chip
from lockstep.planning.measurement import Work


@final
@dataclass(frozen=True, kw_only=True)
class Floor:
    """The least time of a step, in seconds.

    Attributes:
        compute_s: the time of the step's operations at the chip's peak rate.
        memory_s: the time to read the step's arguments and write its results at the memory's bandwidth.
        interconnect_s: the time to send the collectives' bytes at the bandwidth of the links between chips.
        xla_memory_s: the time to move all bytes that XLA counts at the memory's bandwidth. This is not a floor, because
            much of this data stays within the chip, but it is closer to the real time of a step.
    """

    compute_s: float
    memory_s: float
    interconnect_s: float
    xla_memory_s: float

    @property
    def step_s(self) -> float:
        """The least time of the step: the largest of compute, memory and interconnect time."""
        return max(self.compute_s, self.memory_s, self.interconnect_s)

    @property
    def bound_by(self) -> str:
        """The part with the largest time: "compute", "memory" or "interconnect"."""
        parts = {"compute": self.compute_s, "memory": self.memory_s, "interconnect": self.interconnect_s}
        return max(parts, key=parts.__getitem__)


def floor(work: Work, *, chip: Chip) -> Floor:
    """Returns the least time of a step on a chip.

    Args:
        work: the work of one chip in a step.
        chip: the chip.
    """
    return Floor(
        compute_s=work.operations / chip.peak_flops,
        memory_s=work.state_bytes / chip.hbm_bytes_per_s,
        interconnect_s=sum(found.sent_bytes for found in work.collectives) / chip.ici_bytes_per_s,
        xla_memory_s=work.xla_bytes / chip.hbm_bytes_per_s,
    )
