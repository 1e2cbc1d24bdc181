"""The chips that a step can be planned for, with their published figures and the sources of these."""

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
    """A chip and its published figures.

    Attributes:
        generation: the chip's name in a target, such as "v5e".
        peak_flops: the peak rate in bfloat16, in floating-point operations per second. Matrix products of float32 use
            bfloat16 too by default.
        hbm_bytes: the size of the chip's memory in bytes.
        hbm_bytes_per_s: the bandwidth of this memory, in bytes per second.
        ici_bytes_per_s: the bandwidth to other chips of the slice, over all links, in one direction, in bytes per
            second.
        slice_chips: the number of chips of the largest slice, which the interconnect joins.
        dcn_bytes_per_s: the bandwidth of the largest slice to other slices over the data center network, in one
            direction, in bytes per second; None if it is not published.
        source: the URL of the source of the figures, except ``ici_bytes_per_s``.
        ici_source: the URL of the source of ``ici_bytes_per_s``.
        accelerator: the chip's name in the machine catalogue.
        cores_per_chip: the number of cores that the catalogue counts for one chip.
        shapes: the shapes of the available slices: the number of chips along each dimension of the interconnect.
        machine_types: the hosts' machine types in the catalogue, by the number of chips per host.
        chips_per_host: the number of chips per host in a slice of several hosts.
    """

    generation: str
    peak_flops: float
    hbm_bytes: int
    hbm_bytes_per_s: float
    ici_bytes_per_s: float
    slice_chips: int
    dcn_bytes_per_s: float | None
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
                slice_chips=4096,
                dcn_bytes_per_s=None,
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
                slice_chips=256,
                dcn_bytes_per_s=800 * GIGA,  # 6.4 Tbit/s
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
                slice_chips=6144,
                dcn_bytes_per_s=None,
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
                slice_chips=256,
                dcn_bytes_per_s=3200 * GIGA,  # 25.6 Tbit/s
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
"""The chips by generation."""
