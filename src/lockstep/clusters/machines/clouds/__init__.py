"""The differences between clouds, one module for each cloud."""

from lockstep.clusters.machines.clouds.base import AbstractCloud
from lockstep.clusters.machines.clouds.registry import open_cloud

__all__ = ["AbstractCloud", "open_cloud"]
