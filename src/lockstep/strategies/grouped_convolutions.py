"""Makes the gradients of convolutions correct on several devices, and grouped convolutions fast.

XLA's partitioner handles three kinds of convolutions badly (jaxlib 0.10 to 0.12):

- The gradient of a kernel (a convolution with `batch_group_count`) is summed over all devices. If several devices hold
  copies of the same rows, each copy is counted, and the gradient is too large by that factor. This happens for every
  uneven batch that divides over some of the devices, and for every batch if a replica's model is divided. If the
  gradient is to be divided over devices that hold the same rows (ZeRO), the compiler ends the process.
- A convolution with more than one input channel per group gathers the whole batch on every device, and every device
  computes all of it (https://github.com/openxla/xla/issues/47945), no faster than one device. A 1 x 1 convolution of
  this kind is wrong if a later operation divides its images and all devices have the same rows.
- If the height or the width of images is divided over devices, and other devices hold copies of the same rows, the
  gradients of any convolution are summed over all devices too. Nobody divides images in this way, but a later operation
  can: a kernel behind a `Flatten` that a layout map divides, in an uneven batch.

`lower_convolution_by_rows` lowers the first two kinds as a `jax.shard_map`: each device convolves its own rows, and
gradients are summed over the devices whose rows differ. For every other convolution under a layout whose devices may
hold copies of rows, it keeps height and width undivided. It replaces the lowering of JAX's primitive, so it covers
Keras's layers, JAX's functions, gradients and `jax.vmap` alike. Other convolutions, programs of one device, and code
inside a `jax.shard_map` over all axes of its mesh are lowered as before. Inside a `jax.shard_map` over some of the
axes, rows are divided over the other axes.
"""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import jax
import keras
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec, use_abstract_mesh

from lockstep.errors import BackendError
from lockstep.strategies.depthwise_convolutions import lower_depthwise
from lockstep.strategies.mesh import AbstractLayout
from lockstep.upstream.jax_lowerings import (
    Primitive,
    Rule,
    Rules,
    ShapedArray,
    lower_function,
    register_lowering,
)

ROWS_AXIS: Final = "rows"
REST_AXIS: Final = "rest"


def lower_convolution_by_rows(rules: Rules) -> Rules:
    """Returns the lowering rules of convolutions. They divide by rows those that the partitioner gets wrong.

    On CPUs, the rows of depthwise convolutions are computed by `lower_depthwise`.
    """
    rules = {**rules, "cpu": lower_depthwise(rules.get("cpu", rules[None]))}
    for platform, rule in rules.items():
        register_lowering(_original_convolution, rule, platform=platform)
    return {platform: _divided(rule) for platform, rule in rules.items()}


def num_blocks(num_rows: int, *, num_devices: int) -> int:
    """Returns the number of blocks of rows that a convolution is divided into, as the current layout divides a batch.

    Args:
        num_rows: the number of rows of the convolution's input.
        num_devices: the number of devices that the program runs on.
    """
    current: Any = keras.distribution.distribution()
    num_replicas = num_devices
    if current is not None:
        axes = dict(zip(current.device_mesh.axis_names, current.device_mesh.shape, strict=True))
        if math.prod(axes.values()) == num_devices:
            num_replicas = axes.get(current.batch_dim_name, num_devices)
    return math.gcd(num_rows, num_replicas)


@dataclass(frozen=True, kw_only=True)
class _Division:
    """How the rows of a convolution are divided over the devices of a program.

    Attributes:
        current: the mesh that is current at the convolution.
        mesh: the devices, along the partitioner's axes and those of `current`.
        axes: the axes that the partitioner controls.
        rows: the axes among them that rows are divided over. Along the other axes, devices hold the same rows.
    """

    current: AbstractMesh
    mesh: AbstractMesh
    axes: tuple[str, ...]
    rows: tuple[str, ...]


def _division(axis_context: Any, num_rows: int) -> _Division:
    num_devices: int | None = getattr(axis_context, "num_devices", None)
    if num_devices is None:
        mesh, axes = axis_context.mesh.abstract_mesh, _axes_left(axis_context)
    else:
        mesh = jax.sharding.get_abstract_mesh()  # one that `jax.set_mesh` has made current
        axes = tuple(mesh.axis_names)
    if num_devices is not None and mesh.size != num_devices:
        blocks = num_blocks(num_rows, num_devices=num_devices)
        # The program's devices in the program's order, which is that of every layout.
        own = (ROWS_AXIS, REST_AXIS)
        mesh = AbstractMesh((blocks, num_devices // blocks), own, axis_types=(AxisType.Auto,) * len(own))
        return _Division(current=AbstractMesh((), ()), mesh=mesh, axes=own, rows=(ROWS_AXIS,))
    types = {axis: AxisType.Auto if axis in axes else AxisType.Manual for axis in mesh.axis_names}
    mesh = mesh.update_axis_types(types)
    return _Division(current=mesh, mesh=mesh, axes=axes, rows=_dividing(num_rows, mesh, axes))


def _dividing(num_rows: int, mesh: AbstractMesh, axes: Sequence[str]) -> tuple[str, ...]:
    """Returns the axes, in their order, that the rows divide over."""
    found: list[str] = []
    for axis in axes:
        if num_rows % math.prod(mesh.shape[name] for name in (*found, axis)) == 0:
            found.append(axis)
    return tuple(found)


def _axes_left(axis_context: Any) -> tuple[str, ...]:
    """Returns the axes of a mesh that the enclosing `jax.shard_map` leaves to the partitioner."""
    manual: frozenset[str] = getattr(axis_context, "manual_axes", frozenset())
    return tuple(axis for axis in axis_context.mesh.axis_names if axis not in manual) if manual else ()


def _is_partitioned(axis_context: Any) -> bool:
    # The context of a program that the partitioner divides has a number of devices; within a shard_map, it has a mesh.
    num_devices: int | None = getattr(axis_context, "num_devices", None)
    if num_devices is None and hasattr(axis_context, "mesh"):
        num_devices = math.prod(axis_context.mesh.shape[axis] for axis in _axes_left(axis_context))
    return num_devices is not None and num_devices > 1


def _divided(rule: Rule) -> Rule:
    def lower(context: Any, inputs: Any, kernel: Any, **options: Any) -> Any:
        axis_context = context.module_context.axis_context
        shapes = [aval.shape for aval in context.avals_in]
        num_rows = None
        if _is_partitioned(axis_context) and _needs_dividing(*shapes, **options):
            num_rows = _num_rows(*shapes, **options)
        if num_rows is not None:
            # The caller may have its own current mesh, and arrays whose types name the axes of that mesh.
            plain = context.replace(avals_in=[ShapedArray(aval.shape, aval.dtype) for aval in context.avals_in])
            division = _division(axis_context, num_rows)
            with use_abstract_mesh(division.current):
                divided = _over_blocks(*shapes, division=division, **options)
                return lower_function(divided)(plain, inputs, kernel)
        layout = _layout_of_copies(axis_context, shapes[0], **options)
        if layout is not None:
            whole = _with_whole_images(layout, **options)
            return lower_function(whole)(context, inputs, kernel)
        return rule(context, inputs, kernel, **options)

    return lower


def _layout_of_copies(axis_context: Any, inputs: Any, *, dimension_numbers: Any, **_: Any) -> AbstractLayout | None:
    """Returns the layout of a program if its devices may hold copies of a convolution's rows; else None."""
    current: Any = keras.distribution.distribution()
    num_devices: int = getattr(axis_context, "num_devices", 1)
    if not isinstance(current, AbstractLayout) or num_devices == 1 or num_devices != len(current.devices):
        return None
    # In the gradient of a kernel, the rows are the input's channels. Nothing distinguishes it from other convolutions.
    sizes = [inputs[dim] for dim in dimension_numbers.lhs_spec[:2]]
    may_be_uneven = any(isinstance(size, int) and size % current.num_replicas for size in sizes)
    return current if may_be_uneven else None


def _with_whole_images(layout: AbstractLayout, **options: Any) -> Callable[..., Any]:
    """Returns the convolution as a function whose arrays are divided only along rows and channels."""
    numbers: Any = options["dimension_numbers"]
    mesh = layout.data_mesh(layout.num_replicas)

    def keep_whole(array: jax.Array, dims: Sequence[int]) -> jax.Array:
        spec = [None if dim in dims[2:] else PartitionSpec.UNCONSTRAINED for dim in range(array.ndim)]
        return lax.with_sharding_constraint(array, NamedSharding(mesh, PartitionSpec(*spec)))

    def convolve(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        operands = keep_whole(inputs, numbers.lhs_spec), keep_whole(kernel, numbers.rhs_spec)
        return keep_whole(cast("jax.Array", _original_convolution.bind(*operands, **options)), numbers.out_spec)

    return convolve


def _needs_dividing(
    inputs: Any, kernel: Any, *, dimension_numbers: Any, batch_group_count: int, feature_group_count: int, **_: Any
) -> bool:
    """Whether the partitioner would lower a convolution of these shapes wrongly, or gather its input."""
    del inputs
    channels_a_group = kernel[dimension_numbers.rhs_spec[1]]
    return batch_group_count > 1 or (feature_group_count > 1 and channels_a_group > 1)


def _num_rows(inputs: Any, kernel: Any, **options: Any) -> int | None:
    """Returns the number of rows of a convolution; None if it is not fixed and XLA is correct without division."""
    del kernel
    is_gradient = options["batch_group_count"] > 1
    num_rows = inputs[_dim_of_rows(**options)]
    if isinstance(num_rows, int):
        return num_rows
    if not is_gradient:
        return None
    raise BackendError(
        "a program of several devices has a grouped convolution's gradient over a number of rows that is not fixed",
        received=f"a convolution whose input has {num_rows} rows",
        action="export the program for a fixed batch size",
    )


def _dim_of_rows(*, dimension_numbers: Any, batch_group_count: int, **_: Any) -> int:
    # The gradient of a kernel sums over the rows, which are the channels of its input and of its kernel.
    return dimension_numbers.lhs_spec[1 if batch_group_count > 1 else 0]


def _over_blocks(inputs: Any, kernel: Any, *, division: _Division, **options: Any) -> Callable[..., Any]:
    """Returns the convolution as a function that is divided over blocks of rows."""
    del kernel
    numbers: Any = options["dimension_numbers"]
    is_gradient = options["batch_group_count"] > 1

    def convolve(inputs: jax.Array, kernel: jax.Array) -> jax.Array:
        result = cast("jax.Array", _original_convolution.bind(inputs, kernel, **options))
        return cast("jax.Array", lax.psum(result, division.rows)) if is_gradient else result

    def rows_at(dim: int) -> PartitionSpec:
        return PartitionSpec(*[division.rows if at == dim else None for at in range(len(inputs))])

    rows = rows_at(_dim_of_rows(**options))
    if is_gradient:
        in_specs, out_specs = (rows, rows_at(numbers.rhs_spec[1])), PartitionSpec()
    else:
        in_specs, out_specs = (rows, PartitionSpec()), rows_at(numbers.out_spec[0])
    return jax.shard_map(
        convolve,
        mesh=division.mesh,
        axis_names=set(division.axes),
        in_specs=in_specs,
        out_specs=out_specs,
        check_vma=False,
    )


def _shape_of(inputs: Any, kernel: Any, **options: Any) -> Any:
    def convolve(inputs: jax.Array, kernel: jax.Array) -> Any:
        return cast("Any", lax.conv_general_dilated_p.bind(inputs, kernel, **options))

    arrays = [jax.ShapeDtypeStruct(aval.shape, aval.dtype) for aval in (inputs, kernel)]
    result = cast("jax.ShapeDtypeStruct", jax.eval_shape(convolve, *arrays))
    return ShapedArray(result.shape, result.dtype)


# A convolution with JAX's own lowering. `lower_convolution_by_rows` registers the rules that it replaces for it.
_original_convolution: Final = Primitive("lockstep_convolution")
_original_convolution.def_abstract_eval(_shape_of)
