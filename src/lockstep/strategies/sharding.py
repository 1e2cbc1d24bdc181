"""Sharded state: along which dim each tensor is divided, and the changes of Keras's steps for it.

The stages are those of ZeRO (Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", SC20, https://arxiv.org/abs/1910.02054). A tensor is divided over the replicas along its largest dim that is a
multiple of their number. It stays whole if it has no such dim, or is small. Tensor parallelism (Keras's ``LayoutMap``)
divides over a second axis of the mesh. Both may divide the same tensor, along different dims. A ``LayoutMap`` may also
name the dim that is divided over the replicas, as those of KerasHub's models do.

Keras gives an optimizer's variables the layout of their parameters. The wrappers at the end of this module change that
for models under a `ShardedLayout` (`lockstep.upstream.table` lists them). For all other models, Keras's own code runs.
Gradients are left to the compiler: it divides them like the optimizer's state, which is the cheapest way to update it.
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
_QUANTIZED_DTYPES: Final = ("int8", "uint8")
"""Of kernels that Keras has quantized: parameters, though no gradient reaches them."""

Axes: TypeAlias = Sequence[str | None]
"""For each dim of a tensor, the axis of the mesh that it is divided over, or None."""


@final
class ShardedLayout(AbstractLayout):
    """Divides optimizer state, gradients and parameters over the replicas, by stage, and tensors over a model axis.

    Args:
        devices: the devices of all processes. The devices of one process are next to each other.
        name: the strategy's name, for messages.
        stage: 1 and 2 divide the optimizer's state, and with it the gradients; 3 also divides the parameters.
        num_model_shards: the number of devices that one replica's model is divided over. It must divide the number of
            devices.
        layout_map: for patterns of variables' and layers' paths, the axes that the tensor is divided over: "model",
            "batch" or None for each dim. A pattern must match a whole path.
        keeps_what_does_not_fit: whether a variable stays whole along an axis that does not divide it, with a warning,
            as maps that were written for any size need it; else the variable is refused.
        min_shard_elements: the minimum number of elements of a tensor that is divided over the replicas.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        *,
        name: str,
        stage: Stage,
        num_model_shards: int,
        layout_map: Mapping[str, Axes],
        keeps_what_does_not_fit: bool,
        min_shard_elements: int,
    ) -> None:
        super().__init__(devices, name=name, num_model_shards=num_model_shards)
        self.stage: Final = stage
        self.min_shard_elements: Final = min_shard_elements
        self._axes = dict(layout_map)
        self._keeps_what_does_not_fit = keeps_what_does_not_fit
        self._unfit: list[str] = []
        self._unmatched = set(self._axes)
        self._layout_map = keras.distribution.LayoutMap(None)
        for pattern, axes in self._axes.items():
            self._layout_map[pattern] = tuple(axes)

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the variable's own layout if it was given one, else the layout from the stage and the layout map.

        Raises:
            InvalidInputError: the layout map does not fit the variable.
        """
        own = layout_of(variable)
        if own is not None:
            return own
        shape = tuple(variable.shape)
        axes = self._mapped_axes(variable.path, shape)
        if self.stage == 3 and (variable.trainable or variable.dtype in _QUANTIZED_DTYPES):
            axes = self._cut(shape, axes)
        return self._sharding(axes)

    def get_tensor_layout(self, path: str) -> NamedSharding | None:
        """Returns the layout map's layout of a layer's output while a program is compiled; else None.

        If the map names the batch's dim, this dim stays as the batch was placed, because the number of groups may
        change from batch to batch.
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
        """Returns the sharding over the replicas, at every stage, because it is unknown which arrays are parameters."""
        return self._sharding(self._cut(shape, [None] * len(shape)))

    @property
    def updates_on_host(self) -> bool:
        """Always False: each device updates its own shards."""
        return False

    def to_compute_devices(self, values: Any) -> Any:
        """Returns the values as they are."""
        return values

    def to_state_devices(self, values: Any) -> Any:
        """Returns the values as they are."""
        return values

    def optimizer_layout(self, shape: Sequence[int], *, parameter_layout: Any) -> NamedSharding:
        """Returns the layout of an optimizer's variable.

        Args:
            shape: the shape of the variable.
            parameter_layout: the layout of the parameter of the same shape that the variable belongs to, or None.
        """
        return self._sharding(self._cut(shape, self._axes_of(parameter_layout, len(shape))))

    def gather(self, values: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
        """Gathers parameters that are divided over the replicas, for use. Their gradients are divided again.

        Args:
            values: traced values of variables.
            variables: the variables, in the same order.
        """
        return [self._gather(value, variable) for value, variable in zip(values, variables, strict=True)]

    def warn_of_map(self, variables: Sequence[Any]) -> None:
        """Warns once of patterns of the layout map that have matched no path, and of variables that did not fit.

        Args:
            variables: a model's variables. The warning gives some of their paths as examples.
        """
        if self._unfit:
            logger.warning(
                "ShardedStrategy: the layout map does not fit %s, which stay whole along these dims",
                ", ".join(self._unfit[:4]) + (f" and {len(self._unfit) - 4} more" if len(self._unfit) > 4 else ""),
            )
            self._unfit = []
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
        sizes = {None: 1, MODEL_AXIS: self._num_model_shards, BATCH_AXIS: self.num_replicas}
        has_all_dims = len(found) == len(shape)
        fits = [dim % sizes[axis] == 0 if axis in sizes else False for axis, dim in zip(found, shape, strict=False)]
        if has_all_dims and all(fits):
            return found
        if self._keeps_what_does_not_fit and all(axis in sizes for axis in found):
            self._unfit.append(f"{path} of shape {shape} ({', '.join(map(str, found))})")
            if not has_all_dims:
                return [None] * len(shape)
            return [axis if is_fit else None for axis, is_fit in zip(found, fits, strict=True)]
        raise InvalidInputError(
            f"the layout map does not fit variable {path} of shape {shape}",
            received=tuple(found),
            allowed=f'for each of {len(shape)} dims None, "model" where {self._num_model_shards} divides it, or '
            f'"batch" where {self.num_replicas} divides it',
            action="change the map's pattern or its axes",
        )

    def _lookup(self, path: str) -> Axes | None:
        try:
            found = self._layout_map[path]
        except ValueError as error:  # Keras raises it if several patterns match
            raise InvalidInputError(f"the layout map: {error}") from error
        if found is None:
            return None
        self._unmatched -= {pattern for pattern in self._unmatched if re.fullmatch(pattern, path)}
        return found.axes

    def _cut(self, shape: Sequence[int], axes: Axes) -> Axes:
        """Adds the batch axis to the largest dim that is not divided yet and is a multiple of the replicas' number."""
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
    """Returns a function that gathers a divided value, and whose gradient is divided again."""

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
    """Returns the current strategy's layout if it is a sharded one and the compiler divides the computation.

    Within ``strategy.run``, each replica computes its own part, so the compiler has nothing to divide.
    """
    current = keras.distribution.distribution()
    return current if isinstance(current, ShardedLayout) and not _is_within_a_replica() else None


def _is_within_a_replica() -> bool:
    return bool(jax.sharding.get_abstract_mesh().manual_axes)


def _layout_of_state() -> ShardedLayout | None:
    """Returns the sharded layout for variables that are created now, also within a replica's step; or None."""
    context = active_replica_context()
    strategy = None if context is None else context.strategy
    current = keras.distribution.distribution() if strategy is None else strategy.layout
    return current if isinstance(current, ShardedLayout) else None


def wrap_add_variable(add_variable: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``Optimizer.add_variable`` so that the current layout divides the optimizer's variables."""

    @functools.wraps(add_variable)
    def wrapper(self: Any, shape: Any, *args: Any, layout: Any = None, **kwargs: Any) -> Any:
        current = _layout_of_state()
        if current is not None:
            layout = current.optimizer_layout(tuple(shape), parameter_layout=layout)
        return add_variable(self, shape, *args, layout=layout, **kwargs)

    return wrapper


def wrap_stateless_call(stateless_call: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps ``Layer.stateless_call`` so that it uses whole parameters if the current layout keeps them divided."""

    @functools.wraps(stateless_call)
    def wrapper(self: Any, trainable_variables: Any, non_trainable_variables: Any, *args: Any, **kwargs: Any) -> Any:
        current = current_sharded_layout()
        if current is not None:
            trainable_variables = current.gather(trainable_variables, self.trainable_variables)
            non_trainable_variables = current.gather(non_trainable_variables, self.non_trainable_variables)
        return stateless_call(self, trainable_variables, non_trainable_variables, *args, **kwargs)

    return wrapper
