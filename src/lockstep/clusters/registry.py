"""Cluster engines by name; an engine's module is imported when it is opened."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Final, cast

from lockstep.clusters.base import AbstractCluster
from lockstep.errors import InvalidInputError, closest
from lockstep.home import Home

CLUSTERS: Final = {
    "embedded": "lockstep.clusters.ray.embedded:open_embedded",
}
"""Where each engine is opened, as ``module:function``, called with ``home=``."""


def open_cluster(name: str, *, home: Home) -> AbstractCluster:
    """Returns the engine of a name, not yet started.

    Args:
        name: a key of `CLUSTERS`.
        home: where an engine that Lockstep owns keeps its records.

    Raises:
        InvalidInputError: there is no such engine.
    """
    if name not in CLUSTERS:
        raise InvalidInputError(
            "unknown cluster engine", received=name, allowed=sorted(CLUSTERS), action=closest(name, CLUSTERS)
        )
    module, _, function = CLUSTERS[name].partition(":")
    factory = cast("Callable[..., AbstractCluster]", getattr(import_module(module), function))
    return factory(home=home)
