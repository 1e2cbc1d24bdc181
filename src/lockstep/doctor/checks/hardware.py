"""Which accelerators a machine has, by its device files and its PCI bus, whatever JAX sees of them."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from typing import Final, final

from lockstep.doctor.programs import ask
from lockstep.doctor.surroundings import Surroundings

_GOOGLE: Final = "0x1ae0"
_TPUS: Final = frozenset({"0x0027", "0x0056", "0x005e", "0x0062", "0x0063", "0x006f", "0x0076"})
"""The PCI device ids of TPUs from v2 to v7. Google's other devices are network cards."""
_NVIDIA: Final = "0x10de"
_DISPLAY_CLASSES: Final = ("0x0300", "0x0302")
"""The PCI classes of graphics cards: with and without a display."""


@final
@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The accelerators of a machine.

    Attributes:
        num_gpus: the number of NVIDIA GPUs.
        num_tpus: the number of TPU chips.
        driver: the version of NVIDIA's driver; empty if it does not answer.
        problem: what ``nvidia-smi`` says if it fails; empty if it works or is not installed.
    """

    num_gpus: int = 0
    num_tpus: int = 0
    driver: str = ""
    problem: str = ""


def find_hardware(surroundings: Surroundings) -> Hardware:
    """Returns the accelerators of a machine. Runs ``nvidia-smi`` if it is installed, for some seconds at most."""
    on_bus = _on_bus(surroundings)
    files = [path for path in surroundings.glob("dev/nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
    tpu_files = surroundings.glob("dev/accel[0-9]*")
    num_gpus = max(len(files), sum(vendor == _NVIDIA for vendor, _, _ in on_bus))
    num_tpus = max(len(tpu_files), sum(vendor == _GOOGLE and device in _TPUS for vendor, device, _ in on_bus))
    answer = ask(
        ["nvidia-smi", "--query-gpu=driver_version,name", "--format=csv,noheader"],
        env={**surroundings.env, "LC_ALL": "C"},
    )
    if answer is None:
        return Hardware(num_gpus=num_gpus, num_tpus=num_tpus)
    if answer.code != 0:
        return Hardware(num_gpus=num_gpus, num_tpus=num_tpus, problem=answer.last_line)
    rows = [row for row in csv.reader(answer.output.splitlines()) if row]
    return Hardware(num_gpus=max(num_gpus, len(rows)), num_tpus=num_tpus, driver=rows[0][0].strip() if rows else "")


def _on_bus(surroundings: Surroundings) -> list[tuple[str, str, str]]:
    """Returns vendor, device and class of the accelerators and graphics cards on the PCI bus."""
    found: list[tuple[str, str, str]] = []
    for folder in surroundings.glob("sys/bus/pci/devices/*"):
        place = folder.relative_to(surroundings.root)
        vendor, device, kind = (surroundings.read(f"{place}/{name}").lower() for name in ("vendor", "device", "class"))
        if vendor != _NVIDIA or kind.startswith(_DISPLAY_CLASSES):  # NVIDIA also makes network cards and bridges
            found.append((vendor, device, kind))
    return found
