"""A replica's program in a container: what the container gets of the node, how it is started, watched and ended."""

from lockstep.runner.containers.program import ContainerProgram
from lockstep.runner.containers.run import ContainerRun
from lockstep.runner.containers.spec import CONTAINER_PASSED_ON

__all__ = ["CONTAINER_PASSED_ON", "ContainerProgram", "ContainerRun"]
