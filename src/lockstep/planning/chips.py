"""The chips that a step can be planned for, with the figures that their makers publish and where they stand."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, final

from lockstep.jobs.input.spec import AcceleratorType

GIB: Final = 2**30
TERA: Final = 10**12
GIGA: Final = 10**9


@final
@dataclass(frozen=True, kw_only=True)
class Chip:
    """A chip, by its published figures.

    Attributes:
        generation: its name in a target, such as "v5e".
        peak_flops: floating-point operations a second in bfloat16, which matrix products of float32 use too by default.
        hbm_bytes: its memory.
        hbm_bytes_per_s: that memory's bandwidth.
        ici_bytes_per_s: what it can send to other chips of its slice, over all its links, in one direction.
        source: where the figures stand.
        ici_source: where the last one stands.
        accelerator: its name in the machine catalogue.
        cores_per_chip: how many cores the catalogue counts for one chip.
        shapes: the slices that there are, as chips along each dimension of the interconnect.
        machine_types: the hosts by how many chips they have, as the machine catalogue names them.
        chips_per_host: chips of a host of a slice that has several hosts.
    """

    generation: str
    peak_flops: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    ici_bytes_per_s: float
    source: str
    ici_source: str
    accelerator: AcceleratorType
    cores_per_chip: int
    shapes: tuple[tuple[int, ...], ...]
    machine_types: MappingProxyType[int, str]
    chips_per_host: int = 4


_SHAPES_2D: Final = ((1, 1), (2, 2), (2, 4), (4, 4), (4, 8), (8, 8), (8, 16), (16, 16))
_SHAPES_3D: Final = ((2, 2, 1), (2, 2, 2), (2, 2, 4), (2, 4, 4), (4, 4, 4), (4, 4, 8), (4, 8, 8))

CHIPS: Final = MappingProxyType(
    {
        chip.generation: chip
        for chip in (
            Chip(
                generation="v4",
                peak_flops=275 * TERA,
                hbm_bytes=32 * GIB,
                hbm_bytes_per_s=1200 * GIGA,
                ici_bytes_per_s=300 * GIGA,  # 2400 Gbit/s
                source="https://cloud.google.com/tpu/docs/v4",
                ici_source="https://cloud.google.com/blog/products/ai-machine-learning/"
                "introducing-cloud-tpu-v5p-and-ai-hypercomputer",
                accelerator=AcceleratorType("TPU_V4_POD"),
                cores_per_chip=2,
                shapes=_SHAPES_3D,
                machine_types=MappingProxyType({4: "cloud_tpu"}),
            ),
            Chip(
                generation="v5e",
                peak_flops=197 * TERA,
                hbm_bytes=16 * GIB,
                hbm_bytes_per_s=819 * GIGA,
                ici_bytes_per_s=200 * GIGA,  # 400 GB/s in both directions
                source="https://cloud.google.com/tpu/docs/v5e",
                ici_source="https://cloud.google.com/tpu/docs/v5e",
                accelerator=AcceleratorType("TPU_V5E"),
                cores_per_chip=1,
                shapes=_SHAPES_2D,
                machine_types=MappingProxyType({1: "ct5lp-hightpu-1t", 4: "ct5lp-hightpu-4t", 8: "ct5lp-hightpu-8t"}),
            ),
            Chip(
                generation="v5p",
                peak_flops=459 * TERA,
                hbm_bytes=95 * GIB,
                hbm_bytes_per_s=2765 * GIGA,
                ici_bytes_per_s=600 * GIGA,  # 4800 Gbit/s
                source="https://cloud.google.com/tpu/docs/v5p",
                ici_source="https://cloud.google.com/tpu/docs/v5p",
                accelerator=AcceleratorType("TPU_V5P"),
                cores_per_chip=1,
                shapes=_SHAPES_3D,
                machine_types=MappingProxyType({4: "ct5p-hightpu-4t"}),
            ),
            Chip(
                generation="v6e",
                peak_flops=918 * TERA,
                hbm_bytes=32 * GIB,
                hbm_bytes_per_s=1638 * GIGA,
                ici_bytes_per_s=400 * GIGA,  # 800 GB/s in both directions
                source="https://docs.cloud.google.com/tpu/docs/v6e",
                ici_source="https://docs.cloud.google.com/tpu/docs/v6e",
                accelerator=AcceleratorType("TPU_V6E"),
                cores_per_chip=1,
                shapes=_SHAPES_2D,
                machine_types=MappingProxyType({1: "ct6e-standard-1t", 4: "ct6e-standard-4t", 8: "ct6e-standard-8t"}),
            ),
        )
    }
)
"""By generation."""
