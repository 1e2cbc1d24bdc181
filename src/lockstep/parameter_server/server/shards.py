"""A server's dense parameters: values and optimizer state, updated as gradients arrive."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, final

import jax
import jax.numpy as jnp
import keras
import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.optimizers import build_optimizer
from lockstep.parameter_server.placement import Placement
from lockstep.parameter_server.protocol import Group
from lockstep.upstream.keras_variables import iterations_of, learning_rate_of, set_path, set_stored_value

Buffers: TypeAlias = Mapping[str, np.ndarray[Any, Any]]
"""The values of many shards, one after the other, by dtype name."""


@final
@dataclass(kw_only=True)
class DenseCopy:
    """A copy of the values and the optimizers' variables at one time, separate from those of the server.

    Attributes:
        groups: for each group, its buffers and its optimizer's own variables, in the server's order.
    """

    groups: list[tuple[dict[str, Any], list[Any]]]


@final
class DenseShards:
    """The shards of one server.

    Not thread-safe: the owner serializes calls.

    Args:
        placement: the placement of all variables.
        server: the index of this server.
        groups: the groups of variables. Each variable is in exactly one group.
    """

    def __init__(self, placement: Placement, *, server: int, groups: Sequence[Group]) -> None:
        self._placement = placement
        self._server = server
        self._device = jax.local_devices(backend="cpu")[0]
        self._shards = placement.by_server[server]
        self._dtypes = [placement.variables[shard.variable].dtype for shard in self._shards]
        self._shapes = [placement.shard_shape(shard) for shard in self._shards]
        self._sizes = placement.buffer_sizes(server)
        self._has_optimizer = [group.optimizer is not None for group in groups]
        with jax.default_device(self._device):
            self._groups = [self._make_group(group) for group in groups]

    def _make_group(self, group: Group) -> _ServedGroup:
        positions = {variable: position for position, variable in enumerate(group.variables)}
        indices = group.members(self._shards)
        variables = [self._make_variable(index) for index in indices]
        optimizer = None
        if group.optimizer is not None and variables:
            chosen = [positions[self._shards[index].variable] for index in indices]
            spec = replace(
                group.optimizer,
                decays=tuple(group.optimizer.decays[position] for position in chosen),
                constraints=tuple(group.optimizer.constraints[position] for position in chosen),
            )
            for variable, constraint in zip(variables, spec.constraints, strict=True):
                variable.constraint = None if constraint is None else keras.constraints.deserialize(constraint)
            optimizer = build_optimizer(spec, variables)
        return _ServedGroup(variables=variables, optimizer=optimizer, indices=indices)

    def _make_variable(self, index: int) -> Any:
        shard, spec = self._shards[index], self._placement.variables[self._shards[index].variable]
        name = f"{spec.path.replace('/', '_')}_rows_{shard.start}"
        made = keras.Variable(np.zeros(self._shapes[index]), dtype=spec.dtype, name=name)
        set_path(made, spec.path)
        return made

    @property
    def num_updates(self) -> list[int]:
        """The number of pushes that the optimizer of each group has applied."""
        return [0 if group.optimizer is None else iterations_of(group.optimizer) for group in self._groups]

    def read(self) -> dict[str, np.ndarray[Any, Any]]:
        """Returns all values in the placement's buffers, which are valid until the next update."""
        owners = [group for group in self._groups if group.variables]
        if len(owners) == 1:  # its buffers are those of the placement
            return {dtype: np.asarray(buffer) for dtype, buffer in owners[0].buffers.items()}
        found = {dtype: np.empty(size, _numpy_dtype(dtype)) for dtype, size in self._sizes.items()}
        for group in owners:
            buffers = {dtype: np.asarray(buffer) for dtype, buffer in group.buffers.items()}
            for index, dtype, part in group.parts:
                shard = self._shards[index]
                found[dtype][shard.offset : shard.offset + shard.size] = buffers[dtype][part]
        return found

    def write(self, values: Buffers) -> None:
        """Sets all values.

        Args:
            values: the placement's buffers.

        Raises:
            InvalidInputError: the buffers have other sizes or dtypes.
        """
        check_buffers(values, self._sizes)
        for group in self._groups:
            pieces: dict[str, list[np.ndarray[Any, Any]]] = {}
            for index, dtype, _ in group.parts:
                shard = self._shards[index]
                pieces.setdefault(dtype, []).append(values[dtype][shard.offset : shard.offset + shard.size])
            self._set(group, pieces)

    def _set(self, group: _ServedGroup, pieces: Mapping[str, Sequence[np.ndarray[Any, Any]]]) -> None:
        with jax.default_device(self._device):
            group.buffers = {dtype: jnp.array(np.concatenate(own)) for dtype, own in pieces.items()}

    def copy(self) -> DenseCopy:
        """Returns a copy of all values and of the optimizers' variables."""
        # By NumPy: JAX would compile a copy for each shape, which takes seconds the first time.
        return DenseCopy(
            groups=[
                ({name: np.array(buffer) for name, buffer in buffers.items()}, [np.array(value) for value in own])
                for buffers, own in (group.held for group in self._groups)
            ]
        )

    def state(self, copy: DenseCopy | None = None) -> dict[str, np.ndarray[Any, Any]]:
        """Returns all arrays that decide the next update, by name (`value_name`, `slot_name`).

        They are valid until the next update of the server, or of the copy.

        Args:
            copy: the copy to read from; None to read from the server itself.
        """
        held = [group.held for group in self._groups] if copy is None else copy.groups
        found: dict[str, np.ndarray[Any, Any]] = {}
        for number, (group, (buffers, own)) in enumerate(zip(self._groups, held, strict=True)):
            for index, dtype, part in group.parts:
                found[value_name(index)] = np.asarray(buffers[dtype])[part].reshape(self._shapes[index])
            found |= {slot_name(number, index): np.asarray(value) for index, value in enumerate(own)}
        return found

    def restore(self, state: Mapping[str, np.ndarray[Any, Any]]) -> None:
        """Sets everything that `state` returns.

        Raises:
            InvalidInputError: the state is from a server with other shards or another optimizer.
        """
        wanted = {name: (value.shape, str(value.dtype)) for name, value in self.state().items()}
        given = {name: (value.shape, str(value.dtype)) for name, value in state.items()}
        differing = sorted(name for name in wanted.keys() | given.keys() if wanted.get(name) != given.get(name))
        if differing:
            name = differing[0]
            raise InvalidInputError(
                f"{name} of the state of another server", received=given.get(name), allowed=str(wanted.get(name))
            )
        for number, group in enumerate(self._groups):
            pieces: dict[str, list[np.ndarray[Any, Any]]] = {}
            for index, dtype, _ in group.parts:
                pieces.setdefault(dtype, []).append(state[value_name(index)].reshape(-1))
            self._set(group, pieces)
            with jax.default_device(self._device):
                for index, variable in enumerate(group.own):
                    variable.assign(np.array(state[slot_name(number, index)]))

    def set_learning_rate(self, learning_rate: float, *, group: int) -> None:
        """Sets the learning rate of a group's optimizer.

        Raises:
            InvalidInputError: there is no such group, it has no optimizer, or its rate follows a schedule.
        """
        served = self._group(group)
        if served.optimizer is None and self._has_optimizer[group]:
            return  # this server has none of the group's variables
        rate = None if served.optimizer is None else learning_rate_of(served.optimizer)
        if not isinstance(rate, keras.Variable):
            raise InvalidInputError("a learning rate that can be set", received=f"that of group {group}")
        rate.assign(learning_rate)

    def apply(self, gradients: Buffers, *, group: int, has_gradient: Sequence[bool] | None = None) -> None:
        """Updates the shards of a group.

        The gradients must have passed `check`.

        Args:
            gradients: the gradients of those of the group's shards that have one, one after the other in the shards'
                order.
            group: the index of the group.
            has_gradient: for each of the group's shards, whether there is a gradient for it; None if there is one for
                each.
        """
        served = self._group(group)
        served.apply(gradients, mask=served.mask(has_gradient), device=self._device)

    def apply_to(
        self, copy: DenseCopy, gradients: Buffers, *, group: int, has_gradient: Sequence[bool] | None = None
    ) -> None:
        """Updates a copy as `apply` updates the server's own."""
        served = self._group(group)
        mask = served.mask(has_gradient)
        copy.groups[group] = served.updated(*copy.groups[group], gradients, mask=mask, device=self._device)

    def check(self, gradients: Buffers, *, group: int, has_gradient: Sequence[bool] | None = None) -> None:
        """Checks the arguments of `apply`.

        Raises:
            InvalidInputError: there is no such group, or the gradients have other sizes or dtypes than its shards.
        """
        check_buffers(gradients, self.sizes(group=group, has_gradient=has_gradient))

    def sizes(self, *, group: int, has_gradient: Sequence[bool] | None = None) -> dict[str, int]:
        """Returns the number of gradients of each dtype that `apply` needs.

        Raises:
            InvalidInputError: there is no such group, or it has another number of shards.
        """
        served = self._group(group)
        return served.sizes(served.mask(has_gradient))

    def _group(self, group: int) -> _ServedGroup:
        if not 0 <= group < len(self._groups):
            raise InvalidInputError(
                "there is no such optimizer", received=group, allowed=f"0 to {len(self._groups) - 1}"
            )
        return self._groups[group]


@final
class _ServedGroup:
    """The shards that one optimizer updates, in one buffer per dtype.

    Args:
        variables: the Keras variables that stand for the shards in the optimizer. Their values are in the buffers.
        optimizer: the optimizer; None if pushed values are added.
        indices: the indices of the shards among those of the server.

    Attributes:
        buffers: the values by dtype, one shard after the other.
        parts: for each shard, its index, its dtype, and its position in the buffer of that dtype.
    """

    def __init__(self, *, variables: list[Any], optimizer: Any, indices: list[int]) -> None:
        self.variables = variables
        self.optimizer = optimizer
        self._shapes = [tuple(variable.shape) for variable in variables]
        self.parts: list[tuple[int, str, slice]] = []
        pieces: dict[str, list[Any]] = {}
        for index, variable in zip(indices, variables, strict=True):
            own = pieces.setdefault(variable.dtype, [])
            start = sum(piece.size for piece in own)
            own.append(jnp.ravel(variable.value))
            self.parts.append((index, variable.dtype, slice(start, start + own[-1].size)))
            set_stored_value(variable, None)  # an update sets it from the buffer
        self.buffers: dict[str, Any] = {dtype: jnp.concatenate(own) for dtype, own in pieces.items()}
        self._compiled: dict[tuple[bool, ...], Callable[..., Any]] = {}
        self._sizes: dict[tuple[bool, ...], dict[str, int]] = {}
        self._all = (True,) * len(variables)

    @property
    def own(self) -> list[Any]:
        return [] if self.optimizer is None else self.optimizer.variables

    @property
    def held(self) -> tuple[dict[str, Any], list[Any]]:
        return self.buffers, [variable.value for variable in self.own]

    def mask(self, has_gradient: Sequence[bool] | None) -> tuple[bool, ...]:
        return self._all if has_gradient is None else tuple(has_gradient)

    def apply(self, gradients: Buffers, *, mask: tuple[bool, ...], device: Any) -> None:
        self.buffers, new_own = self.updated(*self.held, gradients, mask=mask, device=device)
        for variable, value in zip(self.own, new_own, strict=True):
            set_stored_value(variable, value)

    def updated(
        self, buffers: dict[str, Any], own: list[Any], gradients: Buffers, *, mask: tuple[bool, ...], device: Any
    ) -> tuple[dict[str, Any], list[Any]]:
        """Returns the values and the optimizer's variables after an update. Their old arrays are donated to it."""
        if mask not in self._compiled:
            self._compiled[mask] = jax.jit(partial(self._update, mask=mask), donate_argnums=(0, 1))
        with jax.default_device(device):
            new_buffers, new_own = self._compiled[mask](buffers, own, dict(gradients))
        jax.block_until_ready(new_buffers)  # the gradients may be in memory that the next push reuses
        return dict(new_buffers), list(new_own)

    def sizes(self, mask: tuple[bool, ...]) -> dict[str, int]:
        if len(mask) != len(self.variables):
            raise InvalidInputError("number of gradients", received=len(mask), allowed=str(len(self.variables)))
        if mask not in self._sizes:
            sizes: dict[str, int] = {}
            for (_, dtype, part), has_gradient in zip(self.parts, mask, strict=True):
                if has_gradient:
                    sizes[dtype] = sizes.get(dtype, 0) + part.stop - part.start
            self._sizes[mask] = sizes
        return self._sizes[mask]

    def _update(
        self, buffers: dict[str, Any], own: list[Any], pushed: dict[str, Any], *, mask: tuple[bool, ...]
    ) -> Any:
        values = [
            buffers[dtype][part].reshape(shape)
            for (_, dtype, part), shape in zip(self.parts, self._shapes, strict=True)
        ]
        gradients: list[Any] = []
        starts = dict.fromkeys(pushed, 0)
        for value, (_, dtype, _), has_gradient in zip(values, self.parts, mask, strict=True):
            if not has_gradient:
                gradients.append(None)
                continue
            start = starts[dtype]
            starts[dtype] = start + value.size
            gradients.append(pushed[dtype][start : start + value.size].reshape(value.shape))
        if self.optimizer is None:
            pairs = zip(values, gradients, strict=True)
            return self._laid_out([value if gradient is None else value + gradient for value, gradient in pairs]), own
        state = [*zip(self.variables, values, strict=True), *zip(self.optimizer.variables, own, strict=True)]
        given = [(g, variable) for g, variable in zip(gradients, self.variables, strict=True) if g is not None]
        with keras.StatelessScope(state_mapping=state) as scope:  # Keras would warn of missing gradients
            self.optimizer.apply([gradient for gradient, _ in given], [variable for _, variable in given])
        return (
            self._laid_out([scope.get_current_value(variable) for variable in self.variables]),
            [scope.get_current_value(variable) for variable in self.optimizer.variables],
        )

    def _laid_out(self, values: list[Any]) -> dict[str, Any]:
        pieces: dict[str, list[Any]] = {}
        for value, (_, dtype, _) in zip(values, self.parts, strict=True):
            pieces.setdefault(dtype, []).append(jnp.ravel(value))
        return {dtype: jnp.concatenate(own) for dtype, own in pieces.items()}


def value_name(index: int) -> str:
    """Returns the name of a shard's values in a server's state. `index` is its index among the server's shards."""
    return f"value.{index}"


def slot_name(group: int, index: int) -> str:
    """Returns the name of an optimizer variable in a server's state. `index` is its index in the group's optimizer."""
    return f"slot.{group}.{index}"


def check_buffers(buffers: Buffers, sizes: Mapping[str, int]) -> None:
    """Checks that the arrays of a worker have the sizes and dtypes that the server has.

    Raises:
        InvalidInputError: they have other sizes or dtypes.
    """
    found = {
        name: buffer.size if buffer.dtype == _numpy_dtype(name) else f"{buffer.size} of {buffer.dtype}"
        for name, buffer in buffers.items()
    }
    if found != dict(sizes):
        raise InvalidInputError(
            "values that are not those of this server's variables",
            received=found,
            allowed=f"{dict(sizes)}",
            action="run the same script, with the same model and dtypes, in every process",
        )


def _numpy_dtype(name: str) -> np.dtype[Any]:
    return np.dtype(jax.numpy.dtype(name))
