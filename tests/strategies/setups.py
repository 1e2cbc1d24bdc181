"""The strategies that have to behave alike and to give the numbers of one device: a new one joins with one line."""

import pytest

from lockstep.strategies import (
    CentralStorageStrategy,
    MirroredStrategy,
    MultiWorkerMirroredStrategy,
    OneDeviceStrategy,
    ShardedStrategy,
    TPUStrategy,
)
from lockstep.testing.strategies import Setup
from lockstep.topology import Topology

TENSOR_PARALLEL = {".*(hidden|words)/(kernel|embeddings)": (None, "model"), "classes/kernel": ("model", None)}


def cpus(num_devices):
    return [f"cpu:{index}" for index in range(num_devices)]


def sharded(num_devices, **options):
    return ShardedStrategy(cpus(num_devices), min_shard_elements=1, **options)


def tensor_parallel(num_replicas):
    return sharded(2 * num_replicas, stage=1, model_parallel=2, layout_map=TENSOR_PARALLEL)


SETUPS = (
    Setup("one_device", lambda number: OneDeviceStrategy(f"cpu:{number + 2}"), replicas=(1,)),
    Setup("mirrored", lambda number: MirroredStrategy(cpus(number))),
    Setup("multi_worker", lambda number: MultiWorkerMirroredStrategy(Topology()), takes_all_devices=True),
    Setup("tpu", lambda number: TPUStrategy(), takes_all_devices=True),
    Setup("central_storage", lambda number: CentralStorageStrategy(cpus(number))),
    Setup("sharded_1", lambda number: sharded(number, stage=1)),
    Setup("sharded_2", lambda number: sharded(number, stage=2)),
    Setup("sharded_3", lambda number: sharded(number, stage=3)),
    Setup("tensor_parallel", tensor_parallel, replicas=(1, 2, 3, 4), num_devices=2),
)


def of_each_value(cell):
    """The strategy, the net, and the optimizer with its dtype."""
    return {cell.setup.name, cell.net, (cell.dtype, cell.optimizer)}


def few_light(cells, values_of):
    """Marks cells as heavy, but for a few that have each of the values once at least."""
    params, seen = [], set()
    for cell in cells:
        values = values_of(cell)
        params.append(pytest.param(cell, marks=() if values - seen else pytest.mark.heavy))
        seen |= values
    return params
