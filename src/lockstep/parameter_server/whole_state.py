"""The dense state of all servers as whole arrays, independent of the number of servers and the partitioner. Pure."""

# Keras is only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, final

import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.optimizers import OptimizerSpec, describe_optimizer
from lockstep.parameter_server.placement import Placement, Shard, VariableSpec
from lockstep.parameter_server.protocol import Group, Setup
from lockstep.parameter_server.server.shards import slot_name, value_name
from lockstep.parameter_server.server.slots import Slot, slots_of

Array: TypeAlias = np.ndarray[Any, Any]
ServerState: TypeAlias = Mapping[str, Array]
"""All arrays of a server by name; see `lockstep.parameter_server.server.shards.DenseShards.state`."""


@final
@dataclass(frozen=True, kw_only=True)
class WholeState:
    """The whole variables, and the whole state of their optimizers.

    Attributes:
        values: the value of each variable, in the placement's order.
        slots: for each group, the values of its optimizer's own variables. The key's `variable` is an index in the
            placement. Empty if the group has no optimizer.
    """

    values: tuple[Array, ...]
    slots: tuple[Mapping[Slot, Array], ...]

    def optimizer_values(self, slots: Sequence[Slot], *, group: int) -> list[Array | None]:
        """Returns the values of a Keras optimizer's own variables, in the optimizer's order.

        Args:
            slots: the slots of these variables, from `placed_slots`.
            group: the group that the optimizer trains.

        Returns:
            An array for each variable; None for a slot of a variable that is not in the placement.
        """
        return [self.slots[group].get(slot) for slot in slots]


def placed_slots(optimizer: Any, variables: Sequence[Any], *, placement: Placement) -> list[Slot]:
    """Returns the slots of a Keras optimizer's own variables. Their `variable` is an index in the placement.

    Args:
        optimizer: the optimizer, built.
        variables: all variables that it was built for, in its order.
        placement: the placement. The slot of a variable that is not in it has the index -1.

    Raises:
        InvalidInputError: an optimizer with the same settings would have other variables than this one.
    """
    indices = {variable.path: index for index, variable in enumerate(placement.variables)}
    specs = [VariableSpec(path=v.path, shape=tuple(v.shape), dtype=str(v.dtype)) for v in variables]
    slots = slots_of(describe_optimizer(optimizer, variables), specs)
    if len(slots) != len(optimizer.variables):
        raise InvalidInputError(
            f"optimizer {optimizer.name!r} does not have the variables that its class and settings produce",
            received=len(optimizer.variables),
            allowed=str(len(slots)),
            action="create a new optimizer for each model",
        )
    return [
        slot if slot.variable is None else replace(slot, variable=indices.get(specs[slot.variable].path, -1))
        for slot in slots
    ]


def local_state(
    setup: Setup, variables: Sequence[Any], *, optimizers: Sequence[tuple[Any, Sequence[Any]]]
) -> WholeState:
    """Returns the state in this process, as the initial state for the servers.

    Args:
        setup: what the servers keep.
        variables: the variables of this process, in the placement's order.
        optimizers: for each group that has one, in order, the optimizer of this process, built, and all variables that
            it was built for.
    """
    slots: list[dict[Slot, Array]] = [{} for _ in setup.groups]
    for number, (optimizer, trained) in enumerate(optimizers):
        own = placed_slots(optimizer, trained, placement=setup.placement)
        slots[number] = {
            slot: np.array(variable.value)
            for slot, variable in zip(own, optimizer.variables, strict=True)
            if slot.variable != -1
        }
    return WholeState(values=tuple(np.array(one.value) for one in variables), slots=tuple(slots))


def gather(setup: Setup, states: Sequence[ServerState]) -> WholeState:
    """Combines the states of all servers.

    Args:
        setup: what the servers keep.
        states: the state of each server.

    Raises:
        InvalidInputError: a state does not fit the setup.
    """
    placement = setup.placement
    values: list[list[Array]] = [[] for _ in placement.variables]
    slots: list[dict[Slot, list[Array]]] = [{} for _ in setup.groups]
    for server, state in enumerate(states):
        for index, shard in enumerate(placement.by_server[server]):
            values[shard.variable].append(_array(state, value_name(index)))
        for number, group in enumerate(setup.groups):
            for index, slot in enumerate(_served_slots(placement, group, server=server)):
                slots[number].setdefault(slot, []).append(_array(state, slot_name(number, index)))
    order = _row_order(placement)
    return WholeState(
        values=tuple(
            _joined(_in_order(parts, order[variable]), placement.by_variable[variable])
            for variable, parts in enumerate(values)
        ),
        slots=tuple(
            {
                # A slot of all variables has the same value on each server that has some of them.
                slot: parts[0]
                if slot.variable is None
                else _joined(_in_order(parts, order[slot.variable]), placement.by_variable[slot.variable])
                for slot, parts in group.items()
            }
            for group in slots
        ),
    )


def scatter(setup: Setup, whole: WholeState) -> list[dict[str, Array]]:
    """Splits a state into the states of servers, however many there are: the inverse of `gather`.

    Args:
        setup: what the servers keep, with the variables and groups of the state.
        whole: the state.

    Returns:
        The state of each server.

    Raises:
        InvalidInputError: the state has other variables or another optimizer.
    """
    placement = setup.placement
    for spec, value in zip(placement.variables, whole.values, strict=True):
        if tuple(value.shape) != spec.shape:
            raise InvalidInputError(f"a value of {spec.path}", received=value.shape, allowed=str(spec.shape))
    states: list[dict[str, Array]] = []
    for shards in placement.by_server:
        state = {
            value_name(index): _part(whole.values[shard.variable], shard, placement)
            for index, shard in enumerate(shards)
        }
        for number, group in enumerate(setup.groups):
            chosen = [shards[index] for index in group.members(shards)]
            for index, slot in enumerate(_own_slots(placement, group, chosen)):
                found = slot if slot.variable is None else replace(slot, variable=chosen[slot.variable].variable)
                value = whole.slots[number].get(found)
                if value is None:
                    raise InvalidInputError(
                        "the state is from another optimizer",
                        received=f"without {_described(found, placement)}",
                        action="continue with the optimizer that the training began with",
                    )
                if slot.variable is not None:
                    value = _part(value, chosen[slot.variable], placement)
                state[slot_name(number, index)] = value
        states.append(state)
    return states


def _served_slots(placement: Placement, group: Group, *, server: int) -> list[Slot]:
    """Returns the slots of an optimizer's variables on a server. Their `variable` is an index in the placement."""
    shards = placement.by_server[server]
    chosen = [shards[index] for index in group.members(shards)]
    return [
        slot if slot.variable is None else replace(slot, variable=chosen[slot.variable].variable)
        for slot in _own_slots(placement, group, chosen)
    ]


def _own_slots(placement: Placement, group: Group, chosen: Sequence[Shard]) -> tuple[Slot, ...]:
    if group.optimizer is None or not chosen:
        return ()
    spec: OptimizerSpec = group.optimizer
    return slots_of(spec, [placement.variables[shard.variable] for shard in chosen])


def _row_order(placement: Placement) -> list[list[int]]:
    """For each variable, returns the order that sorts its parts, as the servers return them in turn, by row."""
    given: list[list[Shard]] = [[] for _ in placement.variables]
    for shards in placement.by_server:
        for shard in shards:
            given[shard.variable].append(shard)
    return [sorted(range(len(parts)), key=lambda number, parts=parts: parts[number].start) for parts in given]


def _in_order(parts: Sequence[Array], order: Sequence[int]) -> list[Array]:
    return [parts[number] for number in order]


def _joined(parts: Sequence[Array], shards: Sequence[Shard]) -> Array:
    if len(parts) == 1:
        return parts[0]
    if all(part.ndim and len(part) == shard.end - shard.start for part, shard in zip(parts, shards, strict=True)):
        return np.concatenate(parts)
    return parts[0]  # a slot for the whole variable: each of its shards has the same value


def _part(value: Array, shard: Shard, placement: Placement) -> Array:
    spec = placement.variables[shard.variable]
    is_by_row = bool(spec.shape) and value.ndim > 0 and len(value) == spec.shape[0]
    return value[shard.start : shard.end] if is_by_row and len(placement.by_variable[shard.variable]) > 1 else value


def _array(state: ServerState, name: str) -> Array:
    if name not in state:
        raise InvalidInputError("the state of a server with another setup", received=f"without {name}")
    return state[name]


def _described(slot: Slot, placement: Placement) -> str:
    if slot.variable is None:
        return f"number {slot.number} of what belongs to all variables"
    return f"the {slot.kind or 'slot'} of {placement.variables[slot.variable].path}"
