"""Optimizer state, gradients and parameters divided over the devices: ZeRO, and tensor parallelism beside it."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast, final

from lockstep.errors import InvalidInputError
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import Device, describe_devices, devices_of_job, local_devices, resolve_devices
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.mesh import MODEL_AXIS
from lockstep.strategies.multi_worker import refuse_parameter_servers, share_seed
from lockstep.strategies.peers.joining import meet
from lockstep.strategies.peers.resolvers import ClusterResolver, resolve_topology
from lockstep.strategies.sharding import Axes, ShardedLayout, Stage
from lockstep.topology import Topology

MIN_SHARD_ELEMENTS: Final = 4096
"""A tensor with fewer elements stays whole: gathering it would cost more than it takes."""


@final
class ShardedStrategy(AbstractStrategy):
    """The state of training cut over the replicas (ZeRO), and a model over several devices (tensor parallelism).

    What one device would compute is computed, on any batch; only where tensors lie differs. By `stage`:

    1. the optimizer's state is cut: each device updates its part of every parameter, and the parts are gathered;
    2. the gradients too: each device gets the sum of the part that it updates;
    3. the parameters too: they are gathered where a layer uses them, and each device keeps its part.

    A tensor is cut along its largest dim that the number of replicas divides. It stays whole where there is none, or
    where it has fewer than `min_shard_elements` elements; `lockstep.strategies.describe_memory` says which.

    With `model_parallel`, each replica is that many devices, next to each other, over which `layout_map` divides
    parameters and layers' outputs; the batch is divided over the replicas.

    The stages are those of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
    (SC20, https://arxiv.org/abs/1910.02054).

    Args:
        devices: devices or their names; all of this process's devices of the fastest kind by default. Not in a job of
            several processes, which uses all devices of all of them.
        stage: 1, 2 or 3.
        model_parallel: over how many devices one replica's model is divided; divides the devices of each process.
        layout_map: a `keras.distribution.LayoutMap`, or a mapping of regular expressions to axes: for paths of
            variables (``dense/kernel``) and of layers' outputs (``dense/output``), "model" or None for each dim. Of a
            `LayoutMap` the axes count; the mesh is this strategy's.
        min_shard_elements: how many elements a tensor has at least that is cut over the replicas.
        cluster_resolver: who is in the job; read from the environment (``TF_CONFIG``) by default.
        communication_options: how values travel between replicas, and how long a process may be silent.

    Raises:
        InvalidInputError: an argument's value, or a layout map without a model axis.
        BackendError: there is no such device, or the processes cannot meet or have different numbers of devices.
        ConfigError: the job has parameter servers.
        PeerLostError: another process did not come.
    """

    def __init__(
        self,
        devices: Iterable[str | Device] | None = None,
        *,
        stage: Stage = 3,
        model_parallel: int = 1,
        layout_map: Mapping[str, Any] | None = None,
        min_shard_elements: int = MIN_SHARD_ELEMENTS,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        if stage not in (1, 2, 3):
            raise InvalidInputError("the stage of ShardedStrategy", received=stage, allowed="1, 2, 3")
        axes = _read_layout_map(layout_map, model_parallel=model_parallel)
        topology = resolve_topology(cluster_resolver)
        chosen = _all_devices(devices, topology=topology, options=communication_options)
        num_local = len(chosen) // topology.num_processes
        if model_parallel < 1 or num_local % model_parallel:
            raise InvalidInputError(
                "model_parallel, over how many devices a model is divided",
                received=model_parallel,
                allowed=f"a divisor of the {num_local} devices of a process",
            )
        layout = ShardedLayout(
            chosen,
            name=type(self).__name__,
            stage=stage,
            num_model_shards=model_parallel,
            layout_map=axes,
            min_shard_elements=min_shard_elements,
        )
        super().__init__(layout, topology=topology, communication_options=communication_options)
        self._description = f"stage {stage}" + (f", {model_parallel} devices a model" if model_parallel > 1 else "")

    def describe(self) -> str:
        """Says over which devices, and what is cut."""
        return f"ShardedStrategy over {describe_devices(self.devices)}, {self._description}"


def _all_devices(
    devices: Iterable[str | Device] | None, *, topology: Topology, options: CommunicationOptions | None
) -> Sequence[Device]:
    prepare_backend()
    if topology.num_processes == 1:
        return resolve_devices(devices) if devices is not None else local_devices()
    if devices is not None:
        raise InvalidInputError(
            "devices, which a job of several processes does not choose",
            received=list(devices),
            allowed="None: all devices of all processes",
        )
    refuse_parameter_servers(topology)
    meet(topology, timeout_s=options.timeout_seconds if options else None)
    met = devices_of_job()
    share_seed()
    return met


def _read_layout_map(layout_map: Mapping[str, Any] | None, *, model_parallel: int) -> dict[str, Axes]:
    axes = {pattern: _read_axes(pattern, value) for pattern, value in (layout_map or {}).items()}
    if model_parallel == 1 and any(MODEL_AXIS in found for found in axes.values()):
        raise InvalidInputError(
            "a layout map divides tensors over the model axis, which has one device",
            received="model_parallel=1",
            allowed="model_parallel=2 or more",
        )
    return axes


def _read_axes(pattern: str, value: Any) -> Axes:
    axes = getattr(value, "axes", value)  # of Keras's TensorLayout, or as they are
    if not isinstance(axes, Sequence) or isinstance(axes, str):
        raise InvalidInputError(f"the axes of {pattern!r} in the layout map", received=axes, allowed="a tuple")
    return tuple(cast("Sequence[str | None]", axes))
