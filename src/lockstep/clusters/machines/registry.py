"""Providers of machines by name; a provider's module is imported when it is opened."""

from __future__ import annotations

from lockstep.clusters.machines.base import AbstractMachines
from lockstep.clusters.machines.local import LocalMachines
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.errors import ConfigError
from lockstep.home import Home
from lockstep.jobs.provisioning import ClusterDefinition, Provider


def open_machines(definition: ClusterDefinition, *, home: Home, head: EmbeddedHead) -> AbstractMachines:
    """Returns the machines of a cluster.

    Args:
        definition: the cluster.
        home: where records of local machines lie.
        head: the head that their nodes join.

    Raises:
        ConfigError: this version cannot drive the provider.
    """
    match definition.provider.type:
        case Provider.LOCAL:
            return LocalMachines(folder=home.machines / definition.name, head=head)
        case other:
            raise ConfigError("provider.type", received=other.value, allowed=[Provider.LOCAL.value])
