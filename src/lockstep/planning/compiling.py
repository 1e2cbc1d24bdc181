"""Compiles a step for devices that are not present, and reads its memory and work from the compiled program.

A step that was laid out over virtual CPU devices is exported (`jax.export`), which keeps its shardings but not its
devices. It is then compiled for the target's devices, which libtpu describes without having them.
"""

from __future__ import annotations

import importlib.util
import math
import re
import time
from collections.abc import Generator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final, cast

import jax
import numpy as np
from jax import export
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding, PartitionSpec, Sharding

from lockstep.errors import BackendError, InvalidInputError
from lockstep.planning.hlo import argument_bytes, collectives
from lockstep.planning.measurement import Measurement, Memory, Work
from lockstep.planning.operations import matrix_operations
from lockstep.planning.targets import Target
from lockstep.strategies.mesh import COPY_AXIS
from lockstep.strategies.programs import BATCH, LABELS, Program

_OUT_OF_MEMORY: Final = "RESOURCE_EXHAUSTED"
LEAST_VERSIONS: Final = {"jax": "0.10.2", "libtpu": "0.0.42"}
"""The oldest versions that TPU programs are compiled with. libtpu 0.0.34, which JAX 0.9 requires, ends the process."""

_LEAST_KEPT: Final = "jax_persistent_cache_min_compile_time_secs"


def target_devices(target: Target) -> list[Any]:
    """Returns a target's devices: descriptions of TPU chips, or this process's CPU devices.

    Raises:
        BackendError: libtpu is not installed, or it or JAX is too old, or does not support the chip, or there are too
            few CPU devices.
    """
    if target.chip is None:
        devices = jax.devices("cpu")[: target.num_chips]
        if len(devices) < target.num_chips:
            raise BackendError("too few CPU devices", received=len(devices), allowed=str(target.num_chips))
        return devices
    if importlib.util.find_spec("libtpu") is None:
        raise BackendError(
            "the compiler for TPUs is not installed", action='install it with: pip install "lockstep-train[tpu]"'
        )
    for package, least in LEAST_VERSIONS.items():
        if _is_older(found := _version(package), least):
            raise BackendError(
                f"TPU programs cannot be compiled with this version of {package}",
                received=found,
                allowed=f"{least} or later",
                action='install it with: pip install --upgrade "lockstep-train[tpu]"',
            )
    # A host's chips form a rectangle; the two cores of a chip act as one device ("megacore").
    rows, columns = (1, 1) if target.chips_per_host == 1 else (2, target.chips_per_host // 2)
    config = "megacore" if target.chip.cores_per_chip > 1 else "default"
    try:
        described = topologies.get_topology_desc(
            platform="tpu",
            topology_name=target.name,
            chips_per_host_bounds=(rows, columns, 1),
            chip_config_name=config,
        )
    except (RuntimeError, NotImplementedError) as error:
        raise BackendError(
            f"libtpu does not describe {target.name}: {str(error).splitlines()[0]}",
            received=f"libtpu {_version('libtpu')}",
        ) from error
    return list(described.devices)


def compile_for(program: Program, *, target: Target) -> Measurement:
    """Compiles a step for a target, without running it.

    Args:
        program: the step, laid out over as many devices as the target has, or over one device. Its arguments may be
            `jax.ShapeDtypeStruct` with a sharding.
        target: the devices to compile for.

    Raises:
        InvalidInputError: the step runs eagerly, or is laid out over another number of devices.
        BackendError: libtpu is missing, or the compiler rejects the step for a reason other than too little memory.
    """
    if not hasattr(program.step, "trace"):
        raise InvalidInputError(
            f"{program.name} is not compiled, so there is nothing to plan",
            received="a step that runs eagerly",
            action="compile the model without run_eagerly=True and with jit_compile on",
        )
    leaves = jax.tree.leaves(program.args)
    here = _devices_of(leaves)
    devices = _select_devices(target_devices(target), num_devices=len(here), target=target)
    device_map = dict(zip(here, devices, strict=True))
    jaxpr = program.step.trace(*program.args).jaxpr
    began = time.monotonic()
    compiled, refusal = _compile(program, device_map, platform="cpu" if target.chip is None else "tpu")
    compile_s = time.monotonic() - began
    text = "" if compiled is None else compiled.as_text()
    memory = _memory(program, compiled, text=text)
    work = None
    if compiled is not None:
        cost = compiled.cost_analysis()
        in_full, once = matrix_operations(jaxpr), matrix_operations(jaxpr, loops_once=True)
        stats = compiled.memory_analysis()
        work = Work(
            operations=cost.get("flops", 0.0) + (in_full - once) / _num_shares(program),
            xla_operations=cost.get("flops", 0.0),
            xla_bytes=cost.get("bytes accessed", 0.0),
            state_bytes=stats.argument_size_in_bytes
            + stats.output_size_in_bytes
            - _untouched_bytes(jaxpr.jaxpr, leaves),
            collectives=collectives(text),
        )
    return Measurement(
        program=program.name,
        num_devices=len(devices),
        num_rows=_num_rows(program),
        num_steps=program.num_steps,
        matrix_operations=matrix_operations(jaxpr),
        memory=memory,
        work=work,
        refusal=refusal,
        compile_s=compile_s,
        versions={name: found for name in ("jax", "jaxlib", "libtpu") if (found := _version(name))},
    )


def _devices_of(leaves: list[Any]) -> tuple[Any, ...]:
    """Returns the devices of the arguments, in the order of the largest mesh, or the only device."""
    meshes = [leaf.sharding.mesh for leaf in leaves if isinstance(getattr(leaf, "sharding", None), NamedSharding)]
    if meshes:
        return tuple(max(meshes, key=lambda mesh: mesh.size).devices.flat)
    arrays = [leaf for leaf in leaves if isinstance(leaf, jax.Array)]
    return tuple(arrays[0].sharding.device_set)[:1] if arrays else (jax.devices()[0],)


def _select_devices(devices: list[Any], *, num_devices: int, target: Target) -> list[Any]:
    if num_devices not in (1, len(devices)):
        raise InvalidInputError(
            f"the script lays its step out over another number of devices than {target.name} has",
            received=num_devices,
            allowed=f"{len(devices)}, or 1",
            action="use the default devices: no simulate_devices, and no list of devices for the strategy",
        )
    return devices[:num_devices]


def _compile(program: Program, device_map: dict[Any, Any], *, platform: str) -> tuple[Any, str | None]:
    """Returns the compiled step and None, or None and the reason why it does not fit into memory."""
    # Every argument keeps its position, so that the compiled program's arguments can be identified.
    args = jax.tree.map(lambda leaf: _described(leaf, device_map), program.args)
    try:
        exported = export.export(program.step, platforms=[platform])(*program.args)
        step = jax.jit(exported.call, donate_argnums=0 if program.donates else (), keep_unused=True)
        lowered = step.trace(*args).lower(lowering_platforms=(platform,))
        with _no_persistent_cache():
            return lowered.compile(), None
    except (RuntimeError, NotImplementedError, ValueError) as error:
        message = str(error)
        if message.startswith(_OUT_OF_MEMORY):
            return None, " ".join(message.partition("\n")[0].removeprefix(f"{_OUT_OF_MEMORY}:").split())
        raise BackendError(
            f"{program.name} cannot be compiled for {platform}: {message.partition(chr(10))[0]}"
        ) from error


@contextmanager
def _no_persistent_cache() -> Generator[None]:
    """Keeps programs out of JAX's persistent cache: a program for absent devices cannot be loaded from it."""
    before = getattr(jax.config, _LEAST_KEPT)
    jax.config.update(_LEAST_KEPT, math.inf)
    try:
        yield
    finally:
        jax.config.update(_LEAST_KEPT, before)


def _described(leaf: Any, device_map: dict[Any, Any]) -> Any:
    sharding = getattr(leaf, "sharding", None)
    devices = list(device_map.values())
    if isinstance(sharding, NamedSharding):
        found = np.vectorize(device_map.__getitem__, otypes=[object])(sharding.mesh.devices)
        moved: Sharding = NamedSharding(Mesh(found, sharding.mesh.axis_names), sharding.spec)
    else:
        moved = NamedSharding(Mesh(np.array(devices), ("device",)), PartitionSpec())
    aval = jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=moved)


def _labels(program: Program) -> list[str]:
    """Returns the labels of all leaves of the arguments."""
    spread = jax.tree.map(lambda label, part: [label] * len(jax.tree.leaves(part)), program.labels, program.args)
    return cast("list[str]", jax.tree.leaves(spread))


def _memory(program: Program, compiled: Any, *, text: str) -> Memory:
    leaves = jax.tree.leaves(program.args)
    sizes = argument_bytes(text) if compiled is not None else tuple(map(_share_bytes, leaves))
    assert len(sizes) == len(leaves), "each argument is one of the program's"
    labels = _labels(program)
    arguments = dict.fromkeys((label for label in LABELS if label in labels), 0)
    for label, size in zip(labels, sizes, strict=True):
        arguments[label] += size
    whole = dict.fromkeys(arguments, 0)
    for label, leaf in zip(labels, leaves, strict=True):
        whole[label] += math.prod(jax.typeof(leaf).shape) * jax.typeof(leaf).dtype.itemsize
    if compiled is None:
        return Memory(arguments=arguments, arguments_bytes=sum(sizes), padded=False, whole=whole)
    stats = compiled.memory_analysis()
    return Memory(
        arguments=arguments,
        arguments_bytes=stats.argument_size_in_bytes,
        padded=True,
        whole=whole,
        temporaries=stats.temp_size_in_bytes,
        results=stats.output_size_in_bytes - stats.alias_size_in_bytes,
        program=stats.generated_code_size_in_bytes,
        peak=getattr(stats, "peak_memory_in_bytes", 0) or None,  # older versions of JAX do not have it
    )


def _untouched_bytes(jaxpr: Any, leaves: list[Any]) -> int:
    """Returns the bytes of arguments that the step does not read, and of arguments that it returns unchanged."""
    read = {id(variable) for equation in jaxpr.eqns for variable in equation.invars}
    given_back = {id(variable) for variable in jaxpr.outvars}
    return sum(
        _share_bytes(leaf) * ((id(variable) not in read) + (id(variable) in given_back))
        for variable, leaf in zip(jaxpr.invars, leaves, strict=True)
    )


def _share_bytes(leaf: Any) -> int:
    sharding, aval = getattr(leaf, "sharding", None), jax.typeof(leaf)
    shape = aval.shape if sharding is None else sharding.shard_shape(aval.shape)
    return math.prod(shape) * aval.dtype.itemsize


def _batch(program: Program) -> list[Any]:
    return [leaf for label, leaf in zip(_labels(program), jax.tree.leaves(program.args), strict=True) if label == BATCH]


def _num_shares(program: Program) -> int:
    """Returns the number of devices that divide the work. Devices that repeat other devices' work do not count."""
    shardings = [leaf.sharding for leaf in _batch(program) if isinstance(leaf.sharding, NamedSharding)]
    meshes = [sharding.mesh for sharding in shardings]
    return max((mesh.size // mesh.shape.get(COPY_AXIS, 1) for mesh in meshes), default=1)


def _num_rows(program: Program) -> int:
    if program.num_rows is not None:
        return program.num_rows
    batch = _batch(program)
    shape = jax.typeof(batch[0]).shape if batch else ()
    return int(shape[0]) if shape else 1


def _is_older(version: str, least: str) -> bool:
    found, wanted = ([int(part) for part in re.findall(r"\d+", text)] for text in (version, least))
    return found < wanted


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
