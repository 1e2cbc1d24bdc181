"""Runs a replica's program in a container: plans what the container gets, starts it, watches it and ends it."""

from lockstep.runner.containers.gateway import Gateway
from lockstep.runner.containers.program import ContainerProgram
from lockstep.runner.containers.run import ContainerRun
from lockstep.runner.containers.spec import CONTAINER_PASSED_ON

__all__ = ["CONTAINER_PASSED_ON", "ContainerProgram", "ContainerRun", "Gateway"]
