"""The strategy that divides the training state over the devices (ZeRO), optionally with tensor parallelism."""

# JAX and Keras are only partly typed, so the type checker does not know the types of their values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, cast, final

import keras

from lockstep.errors import InvalidInputError
from lockstep.strategies.backend import prepare_backend
from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.devices import Device, describe_devices, devices_of_job, local_devices, resolve_devices
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.mesh import BATCH_AXIS, MODEL_AXIS
from lockstep.strategies.multi_worker import refuse_parameter_servers, share_seed
from lockstep.strategies.peers.joining import meet
from lockstep.strategies.peers.resolvers import ClusterResolver, resolve_topology
from lockstep.strategies.sharding import Axes, ShardedLayout, Stage
from lockstep.topology import Topology

MIN_SHARD_ELEMENTS: Final = 4096
"""Tensors with fewer elements stay whole: gathering them would cost more than their memory is worth."""


@final
class ShardedStrategy(AbstractStrategy):
    """Divides the training state over the replicas (ZeRO), and a model over several devices (tensor parallelism).

    The result is what one device would compute, on any batch. Only the placement of tensors differs. The `stage` says
    what is divided:

    1. The optimizer's state. Each device updates its part of every parameter, and the parts are gathered.
    2. The gradients too. The compiler divides them at stage 1 already, so stages 1 and 2 run the same step.
    3. The parameters too. They are gathered when a layer uses them, and each device keeps only its part.

    A tensor is divided along its largest dim that is a multiple of the number of replicas. It stays whole if there is
    no such dim, or if it has fewer than `min_shard_elements` elements. `lockstep.strategies.describe_memory` lists the
    parameters that stay whole.

    With `model_parallel`, each replica consists of that many neighboring devices, and `layout_map` divides parameters
    and layers' outputs over them. The batch is divided over the replicas.

    The stages are those of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models"
    (SC20, https://arxiv.org/abs/1910.02054).

    Args:
        devices: devices or their names. By default, all of this process's devices of the fastest kind. Not allowed in
            a job of several processes, which uses all devices of all processes.
        stage: the ZeRO stage: 1, 2 or 3.
        model_parallel: the number of devices that one replica's model is divided over. It must divide the number of
            devices of each process.
        layout_map: a mapping of regular expressions to axes. An expression matches paths of variables
            (``dense/kernel``) or of layers' outputs (``dense/output``). The axes are "model", "batch" or None for each
            dim; "batch" divides a variable over the replicas. Or a `keras.distribution.LayoutMap`, of which only the
            axes are used, because the mesh is this strategy's. Or a function that returns one for a
            `keras.distribution.DeviceMesh` with the axes "batch" and "model", such as
            `keras_hub.models.GemmaBackbone.get_layout_map`. With the latter two, a variable stays whole along an axis
            that does not divide it, with a warning.
        min_shard_elements: the minimum number of elements of a tensor that is divided over the replicas.
        cluster_resolver: the source of the topology. By default, the environment (``TF_CONFIG``).
        communication_options: how values are sent between replicas, and how long a process may be silent.

    Raises:
        InvalidInputError: an argument has a value that is not allowed, or the layout map uses the model axis while
            `model_parallel` is 1.
        BackendError: there is no such device, or the processes cannot meet or have different numbers of devices.
        ConfigError: the job has parameter servers.
        PeerLostError: another process did not arrive at the meeting.
    """

    def __init__(
        self,
        devices: Iterable[str | Device] | None = None,
        *,
        stage: Stage = 3,
        model_parallel: int = 1,
        layout_map: Mapping[str, Any] | Callable[[Any], Mapping[str, Any]] | None = None,
        min_shard_elements: int = MIN_SHARD_ELEMENTS,
        cluster_resolver: ClusterResolver | None = None,
        communication_options: CommunicationOptions | None = None,
    ) -> None:
        if stage not in (1, 2, 3):
            raise InvalidInputError("the stage of ShardedStrategy", received=stage, allowed="1, 2, 3")
        if not callable(layout_map):
            _read_layout_map(layout_map, model_parallel=model_parallel)  # before processes wait for each other
        topology = resolve_topology(cluster_resolver)
        chosen = _all_devices(devices, topology=topology, options=communication_options)
        num_local = len(chosen) // topology.num_processes
        if model_parallel < 1 or num_local % model_parallel:
            raise InvalidInputError(
                "model_parallel, over how many devices a model is divided",
                received=model_parallel,
                allowed=f"a divisor of the {num_local} devices of a process",
            )
        if callable(layout_map):
            mesh = keras.distribution.DeviceMesh(
                (len(chosen) // model_parallel, model_parallel), [BATCH_AXIS, MODEL_AXIS], list(chosen)
            )
            layout_map = layout_map(mesh)
        axes = _read_layout_map(layout_map, model_parallel=model_parallel)
        layout = ShardedLayout(
            chosen,
            name=type(self).__name__,
            stage=stage,
            num_model_shards=model_parallel,
            layout_map=axes,
            keeps_what_does_not_fit=isinstance(layout_map, keras.distribution.LayoutMap),
            min_shard_elements=min_shard_elements,
        )
        super().__init__(layout, topology=topology, communication_options=communication_options)
        self._description = f"stage {stage}" + (f", {model_parallel} devices a model" if model_parallel > 1 else "")

    def describe(self) -> str:
        """Names the devices, the stage and the number of devices per model."""
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
    axes = getattr(value, "axes", value)  # a TensorLayout of Keras has axes; other values are the axes
    if not isinstance(axes, Sequence) or isinstance(axes, str):
        raise InvalidInputError(f"the axes of {pattern!r} in the layout map", received=axes, allowed="a tuple")
    return tuple(cast("Sequence[str | None]", axes))
