"""The registry of cluster engines by name. An engine's module is imported when the engine is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, cast

from lockstep.clusters.base import AbstractCluster
from lockstep.clusters.choice import ATTACHED, EMBEDDED, PROVISIONED, EngineChoice
from lockstep.errors import InvalidInputError, closest
from lockstep.home import Home
from lockstep.jobs.machines.catalogue import Catalogue

CLUSTERS: Final = {
    EMBEDDED: "lockstep.clusters.ray.opening:open_embedded",
    ATTACHED: "lockstep.clusters.ray.opening:open_attached",
    PROVISIONED: "lockstep.clusters.ray.opening:open_provisioned",
}
"""The functions that open engines, as ``module:function``; called with ``home=``, ``choice=`` and ``catalogue=``."""


def open_cluster(choice: EngineChoice, *, home: Home, catalogue: Catalogue) -> AbstractCluster:
    """Returns an engine that has not been started yet.

    Args:
        choice: the engine; its name is a key of `CLUSTERS`.
        home: the home in which an engine that Lockstep owns keeps its records.
        catalogue: the catalogue of machine types.

    Raises:
        InvalidInputError: there is no such engine.
    """
    if choice.name not in CLUSTERS:
        raise InvalidInputError(
            "unknown cluster engine",
            received=choice.name,
            allowed=sorted(CLUSTERS),
            action=closest(choice.name, CLUSTERS),
        )
    module, _, function = CLUSTERS[choice.name].partition(":")
    factory = cast("Callable[..., AbstractCluster]", getattr(import_module(module), function))
    return factory(home=home, choice=choice, catalogue=catalogue)
