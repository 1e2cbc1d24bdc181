"""Chooses a cloud's own machine size for a machine type of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType


@final
@dataclass(frozen=True, kw_only=True)
class MachineSize:
    """The resources of a machine size.

    Attributes:
        vcpus: the number of vCPUs.
        memory_gib: the memory in GiB.
        accelerator: the type of its accelerators; None if it has none.
        num_accelerators: the number of accelerators.
    """

    vcpus: int
    memory_gib: int
    accelerator: AcceleratorType | None = None
    num_accelerators: int = 0


def family(pattern: str, sizes: Mapping[str, int], *, gib_per_vcpu: int) -> dict[str, MachineSize]:
    """Returns sizes without accelerators that have the same memory per vCPU.

    Args:
        pattern: the machines' names, with ``*`` in place of the size.
        sizes: the number of vCPUs by the name of the size.
        gib_per_vcpu: the memory per vCPU, in GiB.
    """
    return {
        pattern.replace("*", size): MachineSize(vcpus=vcpus, memory_gib=vcpus * gib_per_vcpu)
        for size, vcpus in sizes.items()
    }


def with_gpus(kind: AcceleratorType, sizes: Mapping[str, tuple[int, int, int]]) -> dict[str, MachineSize]:
    """Returns sizes with GPUs of one type.

    Args:
        kind: the type of the GPUs.
        sizes: the number of vCPUs, memory in GiB and number of GPUs, by the machine's name.
    """
    return {
        name: MachineSize(vcpus=vcpus, memory_gib=memory_gib, accelerator=kind, num_accelerators=count)
        for name, (vcpus, memory_gib, count) in sizes.items()
    }


def smallest(
    sizes: Mapping[str, MachineSize], *, vcpus: int, memory_gib: float, accelerator: AcceleratorConfig | None
) -> str | None:
    """Returns the name of the smallest size that has at least these resources; None if there is none.

    Args:
        sizes: the available sizes by name.
        vcpus: the minimum number of vCPUs.
        memory_gib: the minimum memory in GiB.
        accelerator: the accelerators; type and number must be equal.
    """
    wanted = (None, 0) if accelerator is None else (accelerator.type, accelerator.count)
    fitting = [
        (size.vcpus, size.memory_gib, name)
        for name, size in sizes.items()
        if (size.accelerator, size.num_accelerators) == wanted and size.vcpus >= vcpus and size.memory_gib >= memory_gib
    ]
    return min(fitting)[-1] if fitting else None
