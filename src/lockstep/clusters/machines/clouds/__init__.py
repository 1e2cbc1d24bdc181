"""What differs from cloud to cloud: one file a cloud."""

from lockstep.clusters.machines.clouds.base import AbstractCloud
from lockstep.clusters.machines.clouds.registry import open_cloud

__all__ = ["AbstractCloud", "open_cloud"]
