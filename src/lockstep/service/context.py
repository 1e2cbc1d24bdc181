"""The parts of a running service, as its REST interface sees them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from lockstep.clusters import AbstractCluster
from lockstep.jobs import Catalogue
from lockstep.service.controller import Controller
from lockstep.service.deployments import Deployments
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, ModelStore


@final
@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """What the routes need.

    Attributes:
        settings: the service's settings.
        token: the bearer token that requests must carry.
        jobs: jobs and events.
        models: models, versions, operations.
        cluster: the engine.
        catalogue: machines and prices.
        controller: the loop, for what it has to say of the engine.
        deployments: the prediction servers.
        started_time_s: when this service process started, seconds since 1970 UTC.
    """

    settings: Settings
    token: str
    jobs: JobStore
    models: ModelStore
    cluster: AbstractCluster
    catalogue: Catalogue
    controller: Controller
    deployments: Deployments
    started_time_s: float
