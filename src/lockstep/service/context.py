"""The parts of a running service, as its REST interface sees them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import final

from lockstep.clusters import AbstractCluster
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.service.billing.accounting import Accounts
from lockstep.service.billing.spending import BudgetState
from lockstep.service.control.controller import Controller
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.notifications.webhooks import Webhooks
from lockstep.service.prediction.deployments import Deployments
from lockstep.service.problems import Problems
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings
from lockstep.service.store import JobStore, KeyStore, ModelStore, NodeStore, StoredSizeStore
from lockstep.service.telemetry.segments import SegmentCache


@final
@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """What the routes need.

    Attributes:
        settings: the service's settings.
        token: the home's own token.
        keys: the API keys.
        vault: jobs' secrets.
        jobs: jobs and events.
        models: models, versions, operations.
        nodes: the ledger of nodes.
        sizes: what jobs keep in the bucket.
        cluster: the engine.
        catalogue: machines and prices.
        provisioner: drives the machines, where they come and go.
        controller: the loop, for what it has to say of the engine.
        deployments: the prediction servers.
        problems: what is wrong with any part of it now.
        webhooks: delivers webhooks, the operator's and those of jobs.
        started_time_s: when this service process started, seconds since 1970 UTC.
        segments: reads the segments of logs.
    """

    settings: Settings
    token: str = field(repr=False)
    keys: KeyStore
    vault: Vault
    jobs: JobStore
    models: ModelStore
    nodes: NodeStore
    sizes: StoredSizeStore
    cluster: AbstractCluster
    catalogue: Catalogue
    provisioner: Provisioner | None
    controller: Controller
    deployments: Deployments
    problems: Problems
    webhooks: Webhooks
    started_time_s: float
    segments: SegmentCache = field(default_factory=SegmentCache)

    @property
    def budgets(self) -> list[BudgetState]:
        """The states of the projects' budgets."""
        spending = self.controller.schedule.spending
        return [] if spending is None else spending.states()

    @property
    def accounts(self) -> Accounts:
        """What jobs and their nodes cost."""
        return Accounts(
            jobs=self.jobs,
            nodes=self.nodes,
            sizes=self.sizes,
            catalogue=self.catalogue,
            bucket=self.settings.bucket,
        )
