"""Machines that a cloud has, by its own names of them: which one stands in for a machine type of the contract."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from lockstep.jobs.input.spec import AcceleratorConfig, AcceleratorType


@final
@dataclass(frozen=True, kw_only=True)
class MachineSize:
    """What a machine has.

    Attributes:
        vcpus: virtual processors.
        memory_gib: memory in GiB.
        accelerator: its accelerators.
        num_accelerators: how many of them.
    """

    vcpus: int
    memory_gib: int
    accelerator: AcceleratorType | None = None
    num_accelerators: int = 0


def family(pattern: str, sizes: Mapping[str, int], *, gib_per_vcpu: int) -> dict[str, MachineSize]:
    """Returns machines without accelerators that have the same memory for each vCPU.

    Args:
        pattern: their names, with ``*`` in the place of the size.
        sizes: vCPUs by the size's name.
        gib_per_vcpu: memory.
    """
    return {
        pattern.replace("*", size): MachineSize(vcpus=vcpus, memory_gib=vcpus * gib_per_vcpu)
        for size, vcpus in sizes.items()
    }


def with_gpus(kind: AcceleratorType, sizes: Mapping[str, tuple[int, int, int]]) -> dict[str, MachineSize]:
    """Returns machines with GPUs of one kind.

    Args:
        kind: which GPUs.
        sizes: vCPUs, memory in GiB and number of GPUs by the machine's name.
    """
    return {
        name: MachineSize(vcpus=vcpus, memory_gib=memory_gib, accelerator=kind, num_accelerators=count)
        for name, (vcpus, memory_gib, count) in sizes.items()
    }


def smallest(
    sizes: Mapping[str, MachineSize], *, vcpus: int, memory_gib: float, accelerator: AcceleratorConfig | None
) -> str | None:
    """Returns the smallest machine that has as much, and just these accelerators; None if there is none.

    Args:
        sizes: what there is, by name.
        vcpus: how many virtual processors.
        memory_gib: how much memory.
        accelerator: which accelerators.
    """
    wanted = (None, 0) if accelerator is None else (accelerator.type, accelerator.count)
    fitting = [
        (size.vcpus, size.memory_gib, name)
        for name, size in sizes.items()
        if (size.accelerator, size.num_accelerators) == wanted and size.vcpus >= vcpus and size.memory_gib >= memory_gib
    ]
    return min(fitting)[-1] if fitting else None
