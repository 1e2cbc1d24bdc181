"""Opens engines on Ray."""

from __future__ import annotations

from typing import Final

from lockstep.clusters.base import AbstractCluster
from lockstep.clusters.choice import EngineChoice
from lockstep.clusters.machines import Provisioning
from lockstep.clusters.machines.registry import open_machines
from lockstep.clusters.ray.attached import AttachedRayCluster
from lockstep.clusters.ray.embedded import EmbeddedRayCluster
from lockstep.clusters.ray.head import EmbeddedHead, HeadOptions
from lockstep.clusters.ray.provisioned import ProvisionedRayCluster
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import Catalogue

HEAD_PORT: Final = 6379
"""Port of the control store where nodes are on other machines: Ray's usual one, so that a firewall can be told."""

QUICK_HEALTH_CHECKS: Final = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""A node that died counts as lost after 3 to 5 s, rather than after 15."""


def open_embedded(*, home: Home, choice: EngineChoice, catalogue: Catalogue) -> AbstractCluster:
    """Returns the embedded engine of a home, not yet started.

    Args:
        home: where the engine keeps its records and its token.
        choice: nothing more has to be known.
        catalogue: machines, which are but names here.
    """
    head = EmbeddedHead(home)
    return EmbeddedRayCluster(head, home=home, environment=head.environment())


def open_provisioned(*, home: Home, choice: EngineChoice, catalogue: Catalogue) -> AbstractCluster:
    """Returns the engine of a home whose nodes come and go, not yet started.

    Args:
        home: where the engine keeps its records and its token.
        choice: with its definition.
        catalogue: machines.
    """
    definition = choice.definition
    assert definition is not None, "a provisioned engine is chosen with its definition"
    options = HeadOptions(num_replicas=0, environment=QUICK_HEALTH_CHECKS)
    if definition.head_address is not None:
        options = HeadOptions(
            address=definition.head_address, port=HEAD_PORT, num_replicas=0, environment=QUICK_HEALTH_CHECKS
        )
    head = EmbeddedHead(home, options=options)
    machines = open_machines(definition, home=home, head=head, catalogue=catalogue)
    provisioning = Provisioning(definition=definition, machines=machines)
    return ProvisionedRayCluster(
        head, home=home, environment=head.environment(), provisioning=provisioning, catalogue=catalogue
    )


def open_attached(*, home: Home, choice: EngineChoice, catalogue: Catalogue) -> AbstractCluster:
    """Returns an engine that is somebody else's. Its token, where it has one, is in Ray's own variables.

    Args:
        home: the home that it is for.
        choice: with its address.
        catalogue: machines.
    """
    assert choice.address is not None, "an attached engine is chosen with its address"
    return AttachedRayCluster(choice.address, home=home)
