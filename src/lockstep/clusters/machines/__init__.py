"""Where a cluster's machines come from: one file a provider."""

from lockstep.clusters.machines.base import AbstractMachines, Provisioning

__all__ = ["AbstractMachines", "Provisioning"]
