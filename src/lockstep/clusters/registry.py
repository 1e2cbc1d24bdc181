"""Cluster engines by name; an engine's module is imported when it is opened."""

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
"""Where each engine is opened, as ``module:function``, called with ``home=``, ``choice=`` and ``catalogue=``."""


def open_cluster(choice: EngineChoice, *, home: Home, catalogue: Catalogue) -> AbstractCluster:
    """Returns an engine, not yet started.

    Args:
        choice: which; its name is a key of `CLUSTERS`.
        home: where an engine that Lockstep owns keeps its records.
        catalogue: machines.

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
