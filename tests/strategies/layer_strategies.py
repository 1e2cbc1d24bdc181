"""The strategies over four devices that every layer, and random models, are computed under."""

from tests.strategies.setups import cpus, sharded

from lockstep.strategies import CentralStorageStrategy, MirroredStrategy

STRATEGIES = {
    "mirrored": lambda: MirroredStrategy(cpus(4)),
    "sharded_1": lambda: sharded(4, stage=1),
    "sharded_2": lambda: sharded(4, stage=2),
    "sharded_3": lambda: sharded(4, stage=3),
    "model_parallel": lambda: sharded(4, stage=1, model_parallel=2),
    "central_storage": lambda: CentralStorageStrategy(cpus(4)),
}
