"""The strategies that run in one process, over virtual devices."""

from typing import final

from lockstep.strategies import MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy
from lockstep.strategies.base import AbstractStrategy
from lockstep.testing.strategies import AbstractStrategyConformance
from lockstep.topology import Topology


@final
class TestOneDevice(AbstractStrategyConformance):
    num_replicas = 1

    def make_strategy(self) -> AbstractStrategy:
        return OneDeviceStrategy("cpu:3")


class MirroredConformance(AbstractStrategyConformance):
    def make_strategy(self) -> AbstractStrategy:
        return MirroredStrategy([f"cpu:{index}" for index in range(self.num_replicas)])


@final
class TestMirroredOverTwo(MirroredConformance):
    num_replicas = 2


@final
class TestMirroredOverThree(MirroredConformance):
    num_replicas = 3


@final
class TestMirroredOverFour(MirroredConformance):
    num_replicas = 4


@final
class TestMultiWorkerOfOneProcess(AbstractStrategyConformance):
    """All eight devices, as `MirroredStrategy` without arguments takes them too."""

    num_replicas = 8

    def make_strategy(self) -> AbstractStrategy:
        return MultiWorkerMirroredStrategy(Topology())
