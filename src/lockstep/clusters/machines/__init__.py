"""Providers of a cluster's machines, one module for each provider."""

from lockstep.clusters.machines.base import AbstractMachines, Provisioning

__all__ = ["AbstractMachines", "Provisioning"]
