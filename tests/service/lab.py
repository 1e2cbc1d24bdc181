"""A bench whose machines come and go: the real controller and ledger, fake machines, real programs."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from lockstep.clusters.machines import Provisioning
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.provisioning import NodeRecord, parse_cluster
from lockstep.service.billing.accounting import Accounts
from lockstep.service.store import NodeStore, StoredSizeStore, open_database
from lockstep.testing.bench import Bench, step_pauses_s
from lockstep.testing.machines import FakeMachines

DEFINITION: dict[str, Any] = {
    "name": "lab",
    "provider": {"type": "local"},
    "idleTimeout": "600s",
    "retryAfter": "600s",
    "nodeTypes": {
        "cpu": {"machineType": "n1-standard-4", "maxNodes": 4, "spot": True},
        "mem": {"machineType": "n1-highmem-2", "maxNodes": 2},
        "big": {"machineType": "n1-standard-16", "maxNodes": 1, "region": "europe-west4"},
    },
}
SIX = {
    "scaleTier": "CUSTOM",
    "masterType": "n1-standard-4",
    "workerType": "n1-standard-4",
    "workerCount": "3",
    "parameterServerType": "n1-highmem-2",
    "parameterServerCount": "2",
}
ONE = {"scaleTier": "CUSTOM", "masterType": "n1-standard-4"}


class Lab:
    """A bench with machines."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench
        self.cluster = bench.cluster
        self.machines = FakeMachines()
        self.define()

    def define(self, **changes: Any) -> None:
        """Acts as a service that is started anew with another definition."""
        definition = parse_cluster({**DEFINITION, **changes}, source="lab", catalogue=load_catalogue())
        self.provisioning = Provisioning(definition=definition, machines=self.machines)
        self.cluster.set_provisioning(self.provisioning)
        self.bench.restart()

    @property
    def ledger(self) -> list[NodeRecord]:
        return self.store.between(since_s=0.0, until_s=time.time() + 60)

    @property
    def store(self) -> NodeStore:
        return NodeStore(open_database(f"sqlite:///{self.bench.home.database}"))

    def step_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 30
        pauses_s = step_pauses_s()
        while not condition():
            assert time.monotonic() < deadline, self.ledger
            self.bench.step()
            time.sleep(next(pauses_s))

    def events(self, job_id: str) -> list[str]:
        return [event.kind for event in self.bench.store.events(self.bench.job(job_id).uid)]


def accounts(lab: Lab) -> Accounts:
    return Accounts(
        jobs=lab.bench.store,
        nodes=lab.store,
        sizes=StoredSizeStore(open_database(f"sqlite:///{lab.bench.home.database}")),
        catalogue=load_catalogue(),
        bucket=str(lab.bench.home.bucket),
    )
