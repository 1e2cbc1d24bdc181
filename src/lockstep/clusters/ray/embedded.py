"""Opens the embedded engine."""

from __future__ import annotations

import os

from lockstep.clusters.base import AbstractCluster
from lockstep.clusters.ray.head import EmbeddedHead
from lockstep.home import Home


def open_embedded(*, home: Home) -> AbstractCluster:
    """Returns the embedded engine of a home, not yet started.

    Puts the engine's variables into this process's environment; one process serves one home.

    Args:
        home: where the engine keeps its records and its token.
    """
    head = EmbeddedHead(home)
    os.environ.update(head.environment())
    # Ray reads its variables when it is imported.
    from lockstep.clusters.ray.cluster import EmbeddedRayCluster

    return EmbeddedRayCluster(head)
