"""Sharded state: which tensor is cut where, and how Keras's steps are told of it.

The stages are those of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", SC20, https://arxiv.org/abs/1910.02054). A tensor is cut over the replicas along its largest dim that their
number divides; one that has none, or that is small, stays whole. Tensor parallelism (Keras's ``LayoutMap``) cuts over a
second axis of the mesh, and both may cut the same tensor, along different dims.

Keras gives an optimizer's variables the layout of their parameters, and leaves gradients to the compiler. `install`
replaces that for models under a `ShardedLayout`, once in a process; elsewhere Keras's own code runs.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportPrivateUsage=false

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias, final

import jax
import keras
from jax.sharding import NamedSharding, PartitionSpec

from lockstep.errors import InvalidInputError
from lockstep.strategies.devices import Device
from lockstep.strategies.loops.replica import active_replica_context
from lockstep.strategies.mesh import BATCH_AXIS, MODEL_AXIS, AbstractLayout
from lockstep.upstream.keras_variables import is_in_jax_tracing_scope, layout_of

logger = logging.getLogger(__name__)

Stage: TypeAlias = Literal[1, 2, 3]
Axes: TypeAlias = Sequence[str | None]
"""For each dim of a tensor the mesh's axis that it is cut over, or None."""


@final
class ShardedLayout(AbstractLayout):
    """Optimizer state, gradients and parameters cut over the replicas, by stage, and parameters over a model axis.

    Args:
        devices: the devices of all processes, those of one process next to each other.
        name: the strategy's name, for messages.
        stage: 1 cuts the optimizer's state, 2 also the gradients, 3 also the parameters.
        num_model_shards: over how many devices one replica's model is divided; divides the number of devices.
        layout_map: for patterns of variables' and layers' paths, the axes over which the tensor is cut: "model", or
            None, for each dim. A pattern has to match a whole path.
        min_shard_elements: a tensor with fewer elements stays whole.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        name: str,
        stage: Stage,
        num_model_shards: int,
        layout_map: Mapping[str, Axes],
        min_shard_elements: int,
    ) -> None:
        super().__init__(devices, name=name, num_model_shards=num_model_shards)
        self.stage: Final = stage
        self.min_shard_elements: Final = min_shard_elements
        self._axes = dict(layout_map)
        self._unmatched = set(self._axes)
        self._layout_map = keras.distribution.LayoutMap(None)
        for pattern, axes in self._axes.items():
            self._layout_map[pattern] = tuple(axes)

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the variable's own layout where it was given one, else what stage and layout map say.

        Raises:
            InvalidInputError: the layout map does not fit the variable.
        """
        own = layout_of(variable)
        if own is not None:
            return own
        shape = tuple(variable.shape)
        axes = self._mapped_axes(variable.path, shape)
        if self.stage == 3 and variable.trainable:
            axes = self._cut(shape, axes)
        return self._sharding(axes)

    def get_tensor_layout(self, path: str) -> NamedSharding | None:
        """Returns the layout map's layout of a layer's output, in a program that is being compiled.

        The batch's dim, if the map names it, stays as the batch was placed: its number of groups may change from batch
        to batch.
        """
        found = self._lookup(path)
        if found is None or not is_in_jax_tracing_scope() or _is_within_a_replica():
            return None
        return self._sharding([PartitionSpec.UNCONSTRAINED if axis == BATCH_AXIS else axis for axis in found])

    @property
    def state_devices(self) -> tuple[Device, ...]:
        """The devices that compute."""
        return self.devices

    def state_sharding(self, shape: Sequence[int]) -> NamedSharding:
        """Returns the array cut over the replicas, at any stage: nobody says which arrays are parameters."""
        return self._sharding(self._cut(shape, [None] * len(shape)))

    @property
    def updates_on_host(self) -> bool:
        """No: each device updates its shards."""
        return False

    def lend(self, values: Any) -> Any:
        """Returns the values as they are."""
        return values

    def store(self, values: Any) -> Any:
        """Returns the values as they are."""
        return values

    def optimizer_layout(self, shape: Sequence[int], *, parameter_layout: Any) -> NamedSharding:
        """Returns where a variable of an optimizer lies.

        Args:
            shape: its shape.
            parameter_layout: the layout of the parameter of the same shape that it belongs to, or None.
        """
        return self._sharding(self._cut(shape, self._axes_of(parameter_layout, len(shape))))

    def gradient_layout(self, variable: Any) -> NamedSharding:
        """Returns where the gradient of a variable lies when its update begins.

        From stage 2 on that is where the optimizer's state lies: no device needs more of it. Before, each device gets
        the whole gradient.
        """
        axes = self._axes_of(layout_of(variable), len(variable.shape))
        return self._sharding(axes if self.stage == 1 else self._cut(tuple(variable.shape), axes))

    def gather(self, values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Brings parameters that are cut over the replicas together for use; their gradients are cut again.

        Args:
            values: traced values of variables.
            variables: the variables, in the same order.
        """
        return [self._gather(value, variable) for value, variable in zip(values, variables, strict=True)]

    def warn_of_unmatched(self, variables: Sequence[Any]) -> None:
        """Warns of the layout map's patterns that no path has matched, once.

        Args:
            variables: a model's variables, whose paths the warning gives as examples.
        """
        if self._unmatched:
            logger.warning(
                "ShardedStrategy: no variable or layer matches %s of the layout map, so nothing is divided by it; a "
                "pattern matches a whole path, such as %s",
                ", ".join(map(repr, sorted(self._unmatched))),
                ", ".join(repr(variable.path) for variable in variables[:3]),
            )
            self._unmatched = set[str]()

    def _gather(self, value: Any, variable: Any) -> Any:
        axes = self._axes_of(layout_of(variable), len(variable.shape))
        if BATCH_AXIS not in axes or not is_in_jax_tracing_scope(value):
            return value
        cut = self._sharding(axes)
        whole = self._sharding([None if axis == BATCH_AXIS else axis for axis in axes])
        return _gathering(cut, whole)(value)

    def _mapped_axes(self, path: str, shape: Sequence[int]) -> Axes:
        found = self._lookup(path)
        if found is None:
            return [None] * len(shape)
        size = self._num_model_shards
        if len(found) != len(shape) or any(
            axis is not None and (axis != MODEL_AXIS or dim % size) for axis, dim in zip(found, shape, strict=False)
        ):
            raise InvalidInputError(
                f"the layout map does not fit variable {path} of shape {tuple(shape)}",
                received=tuple(found),
                allowed=f'for each of {len(shape)} dims None, or "model" where {size} divides it',
                action="change the map's pattern or its axes",
            )
        return found

    def _lookup(self, path: str) -> Axes | None:
        try:
            found = self._layout_map[path]
        except ValueError as error:  # Keras's way to say that several patterns match
            raise InvalidInputError(f"the layout map: {error}") from error
        if found is None:
            return None
        self._unmatched -= {pattern for pattern in self._unmatched if re.fullmatch(pattern, path)}
        return found.axes

    def _cut(self, shape: Sequence[int], axes: Axes) -> Axes:
        """Adds the batch axis where it divides the largest dim that is not cut yet."""
        if self.num_replicas == 1 or BATCH_AXIS in axes or math.prod(shape) < self.min_shard_elements:
            return axes
        free = [n for n, axis in enumerate(axes) if axis is None and shape[n] and shape[n] % self.num_replicas == 0]
        if not free:
            return axes
        largest = max(free, key=lambda n: shape[n])
        return [BATCH_AXIS if n == largest else axis for n, axis in enumerate(axes)]

    def _axes_of(self, layout: Any, num_dims: int) -> Axes:
        if layout is None:
            return [None] * num_dims
        sharding = layout.backend_layout if isinstance(layout, keras.distribution.TensorLayout) else layout
        return [*sharding.spec, *[None] * (num_dims - len(sharding.spec))]

    def _sharding(self, axes: Sequence[Any]) -> NamedSharding:
        return NamedSharding(self.data_mesh(self.num_replicas), PartitionSpec(*axes))


@functools.cache
def _gathering(cut: NamedSharding, whole: NamedSharding) -> Callable[[Any], Any]:
    """Returns the function that makes a cut value whole, and cuts its gradient."""

    @jax.custom_vjp
    def gather(value: Any) -> Any:
        return jax.lax.with_sharding_constraint(value, whole)

    def forward(value: Any) -> tuple[Any, None]:
        return gather(value), None

    def backward(_: None, gradient: Any) -> tuple[Any]:
        return (jax.lax.with_sharding_constraint(gradient, cut),)

    gather.defvjp(forward, backward)
    return gather


def current_sharded_layout() -> ShardedLayout | None:
    """Returns the current strategy's layout where it is a sharded one and the compiler divides what is computed.

    Within ``strategy.run`` each replica computes its own part, and there is nothing for the compiler to divide.
    """
    current = keras.distribution.distribution()
    return current if isinstance(current, ShardedLayout) and not _is_within_a_replica() else None


def _is_within_a_replica() -> bool:
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _layout_of_state() -> ShardedLayout | None:
    """Returns the layout of variables that are made here, which a replica's step may do too."""
    context = active_replica_context()
    strategy = None if context is None else context.strategy
    current = keras.distribution.distribution() if strategy is None else strategy.layout
    return current if isinstance(current, ShardedLayout) else None


def laying_out_state(add_variable: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``Optimizer.add_variable`` cut a variable of the optimizer as the current layout says."""

    @functools.wraps(add_variable)
    def wrapper(self: Any, shape: Any, *args: Any, layout: Any = None, **kwargs: Any) -> Any:
        current = _layout_of_state()
        if current is not None:
            layout = current.optimizer_layout(tuple(shape), parameter_layout=layout)
        return add_variable(self, shape, *args, layout=layout, **kwargs)

    return wrapper


def cutting_gradients(apply_gradients: Callable[..., Any]) -> Callable[..., Any]:
    """Has an optimizer take gradients that are cut as its own state is."""

    @functools.wraps(apply_gradients)
    def wrapper(self: Any, grads: Sequence[Any], trainable_variables: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        current = current_sharded_layout()
        if current is not None:
            grads = [
                keras.distribution.distribute_tensor(gradient, current.gradient_layout(variable))
                for gradient, variable in zip(grads, trainable_variables, strict=True)
            ]
        return apply_gradients(self, grads, trainable_variables, *args, **kwargs)

    return wrapper


def gathering_parameters(stateless_call: Callable[..., Any]) -> Callable[..., Any]:
    """Has ``Layer.stateless_call`` use whole parameters where the current layout keeps them cut."""

    @functools.wraps(stateless_call)
    def wrapper(self: Any, trainable_variables: Any, *args: Any, **kwargs: Any) -> Any:
        current = current_sharded_layout()
        if current is not None and current.stage == 3:
            trainable_variables = current.gather(trainable_variables, self.trainable_variables)
        return stateless_call(self, trainable_variables, *args, **kwargs)

    return wrapper
