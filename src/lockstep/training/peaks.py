"""The peak rates of accelerators, from their vendors' data sheets, by which model FLOPs utilisation is computed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, final

_TERA: Final = 10**12
_A10G: Final = "https://d1.awsstatic.com/product-marketing/ec2/NVIDIA_AWS_A10G_DataSheet_FINAL_02_17_2022.pdf"
_AMPERE: Final = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_ADA: Final = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"


@final
@dataclass(frozen=True, kw_only=True)
class Peak:
    """The published peak rates of a device, dense and without sparsity.

    Attributes:
        name: the device's name.
        kind: a regular expression for JAX's ``device_kind``.
        half: the peak rate of matrix products in bfloat16 or float16, in floating-point operations per second.
        single: the same in float32. On GPUs since Ampere and on TPUs, XLA computes float32 products with fewer bits by
            default: in TF32, and in bfloat16. The figure is that of this form.
        has_bfloat16: whether the device's matrix units compute in bfloat16.
        source: the URL of the figures.
    """

    name: str
    kind: str
    half: float
    single: float
    has_bfloat16: bool = True
    source: str

    def rate(self, dtype: str) -> float | None:
        """Returns the peak rate in floating-point operations per second; None if it is not published.

        Args:
            dtype: the name of the dtype in which the model computes.
        """
        if dtype == "float16" or (dtype == "bfloat16" and self.has_bfloat16):
            return self.half
        return self.single if dtype == "float32" else None


def _gpu(name: str, kind: str, *, half: float, single: float, source: str, has_bfloat16: bool = True) -> Peak:
    url = source if source.startswith("https://") else f"https://www.nvidia.com/en-us/data-center/{source}/"
    return Peak(name=name, kind=kind, half=half * _TERA, single=single * _TERA, source=url, has_bfloat16=has_bfloat16)


def _tpu(name: str, kind: str, *, rate: float) -> Peak:
    url = f"https://cloud.google.com/tpu/docs/{name.removeprefix('TPU ')}"
    return Peak(name=name, kind=kind, half=rate * _TERA, single=rate * _TERA, source=url)


PEAKS: Final = (
    _gpu("V100 SXM2", r"V100-SXM", half=125, single=15.7, source="v100", has_bfloat16=False),
    _gpu("V100 PCIe", r"V100-PCIE", half=112, single=14, source="v100", has_bfloat16=False),
    _gpu("T4", r"\bT4\b", half=65, single=8.1, source="tesla-t4", has_bfloat16=False),
    _gpu("A100", r"\bA100\b", half=312, single=156, source="a100"),
    _gpu("A10", r"\bA10\b", half=125, single=62.5, source="products/a10-gpu"),
    _gpu("A10G", r"\bA10G\b", half=70, single=35, source=_A10G),
    _gpu("L40S", r"\bL40S\b", half=362, single=183, source="l40s"),
    _gpu("L4", r"\bL4\b", half=121, single=60, source="l4"),
    _gpu("H100 PCIe", r"\bH100 PCIe\b", half=756, single=378, source="h100"),
    _gpu("H100 NVL", r"\bH100 NVL\b", half=835, single=417, source="h100"),
    _gpu("H100 SXM", r"\bH100\b", half=989, single=494, source="h100"),
    _gpu("H200 NVL", r"\bH200 NVL\b", half=835, single=417, source="h200"),
    _gpu("H200 SXM", r"\bH200\b", half=989, single=494, source="h200"),
    _gpu("B200", r"\bB200\b", half=2250, single=1125, source="dgx-b200"),
    _gpu("RTX 3090", r"\bRTX 3090$", half=71, single=35.6, source=_AMPERE),
    _gpu("RTX 4090", r"\bRTX 4090$", half=165.2, single=82.6, source=_ADA),
    # JAX's devices are the cores of v2 and v3, of which a chip has two, and the chips of the later ones.
    _tpu("TPU v2", r"^TPU v2\b", rate=22.5),
    _tpu("TPU v3", r"^TPU v3\b", rate=61.5),
    _tpu("TPU v4", r"^TPU v4$", rate=275),
    _tpu("TPU v5e", r"^TPU (v5e|v5 lite)\b", rate=197),
    _tpu("TPU v5p", r"^TPU (v5p|v5)$", rate=459),
    _tpu("TPU v6e", r"^TPU (v6e|v6 lite)\b", rate=918),
)
"""The devices. The first whose `Peak.kind` is found in the name of a device is meant."""


def find_peak(device_kind: str) -> Peak | None:
    """Returns the peak rates of a device; None if they are not known, such as those of a CPU.

    Args:
        device_kind: the name that JAX gives it, such as "NVIDIA H100 80GB HBM3".
    """
    return next((peak for peak in PEAKS if re.search(peak.kind, device_kind)), None)
