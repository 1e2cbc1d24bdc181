"""The parts of a running service that its REST interface uses."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import final

from lockstep.clusters import AbstractCluster
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.service.billing.accounting import Accounts
from lockstep.service.billing.final_usages import FinalUsages
from lockstep.service.billing.spending import BudgetState
from lockstep.service.checkup import Checkup
from lockstep.service.control.controller import Controller
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.notifications.webhooks import Webhooks
from lockstep.service.prediction.deployments import Deployments
from lockstep.service.prediction.metrics import PredictionMetrics
from lockstep.service.prediction.request_logs import RequestLogs
from lockstep.service.prediction.routing import Routes
from lockstep.service.prediction.waking import Waking
from lockstep.service.problems import Problems
from lockstep.service.security.rates import Rates
from lockstep.service.security.sign_in_links import SignInLinks
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings
from lockstep.service.store import (
    JobStore,
    KeyStore,
    ModelStore,
    NodeStore,
    SearchStore,
    SessionStore,
    StoredSizeStore,
    UploadStore,
)
from lockstep.service.streams import Streams
from lockstep.service.telemetry.log_history import SegmentListings
from lockstep.service.telemetry.scalars import ScalarCache
from lockstep.service.telemetry.segments import SegmentCache
from lockstep.service.tuning.searches import Searches


@final
@dataclass(frozen=True, kw_only=True)
class ServiceContext:
    """The parts of the service that the routes use.

    Attributes:
        settings: the service's settings.
        token: the home's token.
        keys: the store of API keys.
        vault: the projects' secrets.
        jobs: the store of jobs and events.
        models: the store of models, versions and operations.
        uploads: the store of uploaded models.
        nodes: the ledger of nodes.
        sizes: the store of the sizes that jobs have in the bucket.
        cluster: the engine.
        catalogue: the catalogue of machines and prices.
        provisioner: the provisioner; None if the cluster has a fixed set of nodes.
        controller: the controller.
        deployments: starts and ends the prediction servers of versions.
        routes: chooses the prediction servers that requests are sent to.
        waking: holds requests until a prediction server of their version is ready.
        rates: limits how many requests for predictions each key may send.
        prediction_metrics: counts requests for predictions.
        request_logs: writes a sample of them to a bucket.
        problems: the current problems of the service.
        webhooks: the delivery of webhooks, both the operator's and those of jobs.
        started_time_s: the start time of this service process, in seconds since 1970 UTC.
        segments: the cache of log segments.
        listings: the cache of their names.
        scalars: what was read of the TensorBoard files of jobs.
        searches: runs searches over hyperparameters.
        trials: the store of searches and their trials.
        streams: limits the downloads that are under way.
        sessions: the store of the console's sessions.
        sign_in_links: the links that open the console signed in.
        checkup: examines the service's own machine.
        final_usages: what finished jobs used.
        ending: set when the service begins to shut down, so that what waits for something ends.
    """

    settings: Settings
    token: str = field(repr=False)
    keys: KeyStore
    sessions: SessionStore
    vault: Vault
    jobs: JobStore
    models: ModelStore
    uploads: UploadStore
    nodes: NodeStore
    sizes: StoredSizeStore
    cluster: AbstractCluster
    catalogue: Catalogue
    provisioner: Provisioner | None
    controller: Controller
    deployments: Deployments
    routes: Routes
    waking: Waking
    request_logs: RequestLogs
    problems: Problems
    webhooks: Webhooks
    started_time_s: float
    scalars: ScalarCache
    searches: Searches
    trials: SearchStore
    rates: Rates = field(default_factory=Rates)
    prediction_metrics: PredictionMetrics = field(default_factory=PredictionMetrics)
    segments: SegmentCache = field(default_factory=SegmentCache)
    listings: SegmentListings = field(default_factory=SegmentListings)
    streams: Streams = field(default_factory=Streams)
    sign_in_links: SignInLinks = field(default_factory=SignInLinks)
    checkup: Checkup = field(default_factory=Checkup)
    final_usages: FinalUsages = field(default_factory=FinalUsages)
    ending: threading.Event = field(default_factory=threading.Event)

    @property
    def budgets(self) -> list[BudgetState]:
        """The states of the projects' budgets; empty if no project has a limit of money."""
        spending = self.controller.schedule.spending
        return [] if spending is None else spending.states()

    @property
    def accounts(self) -> Accounts:
        """The costs of jobs and their nodes."""
        return Accounts(
            jobs=self.jobs,
            nodes=self.nodes,
            sizes=self.sizes,
            catalogue=self.catalogue,
            bucket=self.settings.bucket,
            final=self.final_usages,
        )
