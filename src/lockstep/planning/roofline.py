"""The least time that a step can take on a chip, from what the step does and what the chip's maker publishes.

Floor, not forecast: a step is as slow as the slowest of three things that can go on at once (S. Williams et al.,
"Roofline: an insightful visual performance model", CACM 52(4), 2009), and reaches none of them in full.
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
        compute_s: its operations at the chip's peak.
        memory_s: reading its arguments and writing its results at the memory's bandwidth.
        interconnect_s: what its collectives send at the bandwidth of the links between chips.
        xla_memory_s: all bytes that XLA counts at the memory's bandwidth: no floor, since much of it stays within the
            chip, but nearer to what a step takes.
    """

    compute_s: float
    memory_s: float
    interconnect_s: float
    xla_memory_s: float

    @property
    def step_s(self) -> float:
        """The greatest of the three that bound it."""
        return max(self.compute_s, self.memory_s, self.interconnect_s)

    @property
    def bound_by(self) -> str:
        """Which of them that is: "compute", "memory" or "interconnect"."""
        parts = {"compute": self.compute_s, "memory": self.memory_s, "interconnect": self.interconnect_s}
        return max(parts, key=parts.__getitem__)


def floor(work: Work, *, chip: Chip) -> Floor:
    """Returns the least time of a step on a chip.

    Args:
        work: what one chip does in a step.
        chip: the chip.
    """
    return Floor(
        compute_s=work.operations / chip.peak_flops,
        memory_s=work.state_bytes / chip.hbm_bytes_per_s,
        interconnect_s=sum(found.sent_bytes for found in work.collectives) / chip.ici_bytes_per_s,
        xla_memory_s=work.xla_bytes / chip.hbm_bytes_per_s,
    )
