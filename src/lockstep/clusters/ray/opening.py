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
"""Port of the control store if nodes are on other machines. It is fixed, Ray's default, so firewalls can allow it."""

QUICK_HEALTH_CHECKS: Final = {
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "3",
}
"""Ray's settings with which a dead node counts as lost after 3 to 5 s, instead of 15 s."""


def open_embedded(*, home: Home, choice: EngineChoice, catalogue: Catalogue) -> AbstractCluster:
    """Returns the embedded engine of a home, not yet started.

    Args:
        home: the home in which the engine keeps its records and its token.
        choice: the choice of this engine; not used.
        catalogue: the catalogue of machine types; not used, because machines are simulated.
    """
    head = EmbeddedHead(home)
    return EmbeddedRayCluster(head, home=home, environment=head.environment())


def open_provisioned(*, home: Home, choice: EngineChoice, catalogue: Catalogue) -> AbstractCluster:
    """Returns the provisioned engine of a home, whose nodes are created and removed on demand; not yet started.

    Args:
        home: the home in which the engine keeps its records and its token.
        choice: the choice of this engine, with the cluster's definition.
        catalogue: the catalogue of machine types.
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
    """Returns an attached engine, which somebody else runs.

    If Ray requires a token there, Ray reads it from its own environment variables.

    Args:
        home: the home that uses the engine.
        choice: the choice of this engine, with the address of its control store.
        catalogue: the catalogue of machine types; not used.
    """
    assert choice.address is not None, "an attached engine is chosen with its address"
    return AttachedRayCluster(choice.address, home=home)
