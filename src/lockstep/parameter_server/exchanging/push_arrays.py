"""Converts the updates of optimizers, and other changed variables, into the arrays of a push, in a compiled program."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.flattening import flatten
from lockstep.parameter_server.model_setup import ServedModel, trained_variables
from lockstep.parameter_server.protocol import Part, gradients_for
from lockstep.strategies.updates import Update
from lockstep.upstream.keras_variables import clip_by_global_norm


def build_push_arrays(
    served: ServedModel, noted: Sequence[Update], *, before: dict[int, Any], after: dict[int, Any]
) -> tuple[list[dict[str, Any]], list[tuple[Part, ...]], dict[str, Any]]:
    """Writes the results of a step into the servers' buffers.

    Args:
        served: the variables, grouped by where they are kept.
        noted: the deferred updates of optimizers.
        before: the values from the servers, by the ids of their variables.
        after: the values that the step has assigned, by the ids of their variables.

    Returns:
        For each server, its arrays by kind and dtype, and the groups that they are for; and the gradients of rows by
        table.

    Raises:
        InvalidInputError: the servers do not know an optimizer, or one of its variables.
    """
    setup = served.setup
    arrays: list[dict[str, Any]] = [{} for _ in range(setup.placement.num_servers)]
    parts: list[list[Part]] = [[] for _ in arrays]
    updates = {id(update.optimizer): update for update in noted}
    unknown = updates.keys() - {id(optimizer) for optimizer in served.optimizers}
    if unknown:
        name = updates[unknown.pop()].optimizer.name
        raise InvalidInputError(
            f"optimizer {name!r} is not known to the parameter servers",
            action="build it with the variables that it trains, within the strategy's scope, before the first step: "
            "optimizer.build(model.trainable_variables)",
        )
    gradients: dict[int, Any] = {}
    for update in noted:
        gradients.update(_gradients_of(update))
    for number, group in enumerate(setup.groups):
        if group.optimizer is not None:
            values = [gradients.get(id(served.variables[index])) for index in group.variables]
        else:
            values = [_change(served.variables[index], before, after) for index in group.variables]
        if all(value is None for value in values):
            continue
        buffers, masks = flatten(setup.placement, group.variables, values)
        for server, (own, mask) in enumerate(zip(buffers, masks, strict=True)):
            if own:
                arrays[server].update({f"{gradients_for(number)}:{dtype}": buffer for dtype, buffer in own.items()})
                parts[server].append(Part(group=number, has_gradient=mask))
    rows = {table.spec.name: gradients.get(id(table.variable)) for table in served.tables}
    return arrays, list(map(tuple, parts)), {name: changes for name, changes in rows.items() if changes is not None}


def _change(variable: Any, before: dict[int, Any], after: dict[int, Any]) -> Any:
    old, new = before[id(variable)], after.get(id(variable))
    return None if new is None or new is old else new - old


def _gradients_of(update: Update) -> dict[int, Any]:
    """Returns an update's gradients by the ids of their variables, after the steps that precede an optimizer's update.

    The scaling of the loss is undone here, also for gradients of rows, because no optimizer on a server would do so.
    The gradients are clipped together here, because only the process that computes the step knows the norm of all of
    them.
    """
    optimizer = update.optimizer
    known = trained_variables(optimizer)
    unknown = [one.path for one in update.variables if not any(one is other for other in known)]
    if unknown:
        raise InvalidInputError(
            f"optimizer {optimizer.name!r} is given a variable that it was not built for",
            received=unknown[0],
            action="build it with all the variables that it is to train",
        )
    given = zip(update.variables, update.gradients, strict=True)
    found = {id(variable): gradient for variable, gradient in given if gradient is not None}
    if optimizer.loss_scale_factor is not None:
        found = {key: gradient / optimizer.loss_scale_factor for key, gradient in found.items()}
    if found and optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        clipped = clip_by_global_norm(list(found.values()), optimizer.global_clipnorm)
        return dict(zip(found, clipped, strict=True))
    return found
