"""What the servers keep of a model: its variables, in an order that every process computes, and who trains them."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Any, final

import keras

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.links.frames import DTYPES
from lockstep.parameter_server.optimizers import describe_optimizer, nearest_row_optimizer, needs_whole
from lockstep.parameter_server.placement import Partitioner, VariableSpec, check_paths, place
from lockstep.parameter_server.protocol import Group, Mode, Setup, TableSpec
from lockstep.parameter_server.row_optimizers import RowSGD
from lockstep.upstream.keras_variables import trainable_variables_of


@final
@dataclass(frozen=True, kw_only=True)
class ServedTable:
    """An embedding whose table the servers keep.

    Attributes:
        variable: the variable without rows that stands for the table in this process.
        spec: the description that the servers receive.
        follows: the group whose learning rate the table's rows follow; None if the rows have their own rate.
    """

    variable: Any
    spec: TableSpec
    follows: int | None


@final
@dataclass(frozen=True, kw_only=True)
class ServedModel:
    """The variables of this process, grouped by where they are kept.

    Attributes:
        setup: the description that the servers receive.
        variables: the variables that the servers keep, in the placement's order.
        optimizers: the optimizers of the first groups, in order. The groups after them have none.
        local: the variables that each process keeps for itself: the states of random generators and, under ``fit``, all
            integers.
        tables: the embeddings whose tables the servers keep.
    """

    setup: Setup
    variables: tuple[Any, ...]
    optimizers: tuple[Any, ...]
    local: tuple[Any, ...]
    tables: tuple[ServedTable, ...] = ()


def describe_model(
    variables: Sequence[Any],
    *,
    optimizers: Sequence[Any],
    embeddings: Sequence[Any] = (),
    num_servers: int,
    partitioner: Partitioner | None,
    mode: Mode,
    is_kept: Callable[[Any], bool] | None = None,
) -> ServedModel:
    """Decides where a model's variables are kept.

    Args:
        variables: all variables except the optimizers' own, each once.
        optimizers: the optimizers, built.
        embeddings: the layers whose tables the servers keep; they may include layers of other models.
        num_servers: the number of servers.
        partitioner: the function that decides how variables are cut; None to keep them whole.
        mode: when the servers apply pushes.
        is_kept: a function that returns whether the servers keep a variable. By default they keep floating-point
            variables and sums.

    Raises:
        InvalidInputError: servers cannot run an optimizer, two optimizers train one variable, the dtype of a variable
            cannot be sent, or a server would have nothing to keep.
    """
    own = {id(variable) for variable in variables}
    layers = {id(layer.embeddings): layer for layer in embeddings if id(layer.embeddings) in own}
    variables = [variable for variable in variables if id(variable) not in layers]
    trained_by: dict[int, Any] = {}
    for optimizer in optimizers:
        for variable in trained_variables(optimizer):
            if id(variable) in trained_by:
                raise InvalidInputError(f"two optimizers train {variable.path}", allowed="one for each variable")
            trained_by[id(variable)] = optimizer
    is_served = [(is_kept or _is_float_or_sum)(variable) for variable in variables]
    served = [variable for variable, kept in zip(variables, is_served, strict=True) if kept]
    paths = _paths_of(served, trained=set(trained_by))
    specs = [
        VariableSpec(
            path=path,
            shape=tuple(variable.shape),
            dtype=_dtype_of(variable),
            is_whole=id(variable) in trained_by and needs_whole(trained_by[id(variable)], variable),
        )
        for path, variable in zip(paths, served, strict=True)
    ]
    groups = _groups_of(optimizers, served, outside=layers)
    check_paths(layer.path for layer in layers.values())
    tables = [_describe_table(layer, trained_by.get(key), optimizers=optimizers) for key, layer in layers.items()]
    # Row n of a table is on server n modulo the number of servers, so the first `num_rows` servers have rows: all of
    # them, if there are fewer servers than rows.
    num_with_rows = max((table.spec.num_rows for table in tables), default=0)
    placement = place(specs, num_servers=num_servers, partitioner=partitioner, num_with_rows=num_with_rows)
    return ServedModel(
        setup=Setup(placement=placement, groups=tuple(groups), tables=tuple(table.spec for table in tables), mode=mode),
        variables=tuple(served),
        optimizers=tuple(optimizers),
        local=tuple(variable for variable, kept in zip(variables, is_served, strict=True) if not kept),
        tables=tuple(tables),
    )


def _groups_of(optimizers: Sequence[Any], served: Sequence[Any], *, outside: Container[int]) -> list[Group]:
    """Returns a group for each optimizer, then the groups of the variables that no optimizer trains.

    Args:
        optimizers: the optimizers.
        served: the variables that the servers keep.
        outside: the ids of the variables that stand for tables. They are in no group.
    """
    indices = {id(variable): index for index, variable in enumerate(served)}
    groups: list[Group] = []
    for optimizer in optimizers:
        trained = [variable for variable in trained_variables(optimizer) if id(variable) not in outside]
        missing = [variable.path for variable in trained if id(variable) not in indices]
        if missing:
            raise InvalidInputError(
                f"optimizer {optimizer.name!r} trains a variable that is not the model's",
                received=missing[0],
                action="make it within the strategy's scope, before the first step",
            )
        members = tuple(indices[id(variable)] for variable in trained)
        groups.append(Group(variables=members, optimizer=describe_optimizer(optimizer, trained)))
    trained_places = {index for group in groups for index in group.variables}
    untrained = [(index, one) for index, one in enumerate(served) if index not in trained_places]
    for is_summed in (False, True):
        members = tuple(index for index, one in untrained if (one.aggregation == "sum") is is_summed)
        if members:
            groups.append(Group(variables=members, is_summed=is_summed))
    return groups


def _paths_of(variables: Sequence[Any], *, trained: set[int]) -> list[str]:
    """Returns the paths by which the servers know variables. Of two unnamed metrics, the second one gets a number.

    Variables that an optimizer trains keep their paths, because the optimizer may decide by path. `check_paths` rejects
    duplicates among these.
    """
    seen = {variable.path for variable in variables if id(variable) in trained}
    paths: list[str] = []
    for variable in variables:
        path = variable.path
        if id(variable) not in trained:
            owner, slash, name = variable.path.rpartition("/")
            numbers = itertools.count(1)
            while path in seen:
                path = f"{owner}_{next(numbers)}/{name}" if slash else f"{name}_{next(numbers)}"
            seen.add(path)
        paths.append(path)
    return paths


def _describe_table(layer: Any, optimizer: Any, *, optimizers: Sequence[Any]) -> ServedTable:
    own = layer.row_optimizer
    if own is None and optimizer is None and not layer.embeddings.trainable:
        own = RowSGD()  # nothing is ever pushed to it
    spec = TableSpec(
        name=layer.path,
        num_rows=layer.input_dim,
        num_columns=layer.output_dim,
        values=layer.first_values(),
        optimizer=own or nearest_row_optimizer(optimizer, layer=layer.path),
    )
    follows = None if own is not None else next(group for group, one in enumerate(optimizers) if one is optimizer)
    return ServedTable(variable=layer.embeddings, spec=spec, follows=follows)


def trained_variables(optimizer: Any) -> list[Any]:
    """Returns the variables that a built optimizer trains, in its order."""
    return trainable_variables_of(optimizer)


def is_random_state(variable: Any) -> bool:
    """Whether a variable is the state of one of Keras's random generators."""
    return variable.name == "seed_generator_state" and variable.dtype == "uint32"


def part_random_states(variables: Sequence[Any], *, worker: int) -> None:
    """Lets each worker draw random numbers of its own; those of the first worker are those of a single device."""
    for variable in filter(is_random_state, variables):
        variable.assign(variable.value + worker)


def _dtype_of(variable: Any) -> str:
    dtype = keras.backend.standardize_dtype(variable.value.dtype)  # Keras may declare 64 bits where JAX stores 32
    if dtype not in DTYPES:
        raise InvalidInputError(
            f"parameter servers cannot keep {variable.path}", received=dtype, allowed=DTYPES, action="convert it"
        )
    return dtype


def _is_float_or_sum(variable: Any) -> bool:
    is_float = keras.backend.is_float_dtype(keras.backend.standardize_dtype(variable.dtype))
    return bool(is_float) or variable.aggregation == "sum"
