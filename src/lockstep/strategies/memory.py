"""Measures the memory that a model's variables use on each device, from their arrays."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, final

import jax


@final
@dataclass(frozen=True, kw_only=True)
class GroupMemory:
    """The memory of one group of a model's variables.

    Attributes:
        name: "parameters", "optimizer" or "other" (batch statistics, seeds, metrics).
        size_bytes: the bytes of one copy of the variables.
        device_bytes: the bytes on each of this process's devices that holds a part of the group, by device name.
        num_cut: the number of variables that are divided over several devices.
        whole: the paths of the variables of which each of their devices holds a whole copy.
    """

    name: str
    size_bytes: int
    device_bytes: Mapping[str, int]
    num_cut: int
    whole: tuple[str, ...]

    @property
    def max_device_bytes(self) -> int:
        """The bytes on the device that holds most; 0 if no device holds any."""
        return max(self.device_bytes.values(), default=0)


def measure_memory(model: Any) -> tuple[GroupMemory, ...]:
    """Measures the memory of a model's variables on each device.

    Do not call it within a running ``fit``, because Keras keeps the values elsewhere then.

    Args:
        model: a built model. If it has an optimizer, the optimizer must be built too.

    Returns:
        Three groups: parameters, optimizer, other.
    """
    parameters = list(model.trainable_variables)
    optimizer = list(model.optimizer.variables) if getattr(model, "optimizer", None) is not None else []
    other = [*model.non_trainable_variables, *model.metrics_variables]
    return _measure("parameters", parameters), _measure("optimizer", optimizer), _measure("other", other)


def _measure(name: str, variables: Iterable[Any]) -> GroupMemory:
    held: Counter[str] = Counter()
    size_bytes, num_cut, whole = 0, 0, list[str]()
    for variable in variables:
        value = variable.value
        if not isinstance(value, jax.Array):  # for example, a string
            continue
        size_bytes += value.nbytes
        for shard in value.addressable_shards:
            held[f"{shard.device.platform}:{shard.device.id}"] += shard.data.nbytes
        if value.sharding.is_fully_replicated:
            whole.append(variable.path)
        else:
            num_cut += 1
    return GroupMemory(name=name, size_bytes=size_bytes, device_bytes=dict(held), num_cut=num_cut, whole=tuple(whole))


def describe_memory(model: Any) -> str:
    """Describes in a table the memory that a model's variables use on each device.

    Args:
        model: a built model, as for `measure_memory`.

    Returns:
        A line for each group: the bytes of one copy, the bytes on the device that holds most, and the numbers of
        divided and of whole variables. If any parameter is divided, a line for each parameter that is whole follows.
    """
    groups = measure_memory(model)
    lines = [f"{'group':<12}{'one copy':>16}{'a device':>16}{'cut':>6}{'whole':>7}"]
    for group in groups:
        figures = f"{group.size_bytes:>14,} B{group.max_device_bytes:>14,} B{group.num_cut:>6}{len(group.whole):>7}"
        lines.append(f"{group.name:<12}{figures}")
    if groups[0].num_cut:
        lines.extend(f"whole on every device: {path}" for path in groups[0].whole)
    return "\n".join(lines)
