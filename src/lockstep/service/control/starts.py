"""Starts jobs: orders their gangs, waits for their machines, and places the gangs on the engine."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, final

from lockstep.clusters import AbstractCluster
from lockstep.errors import CorruptDataError, EngineError, NotFoundError
from lockstep.jobs.input.candidates import num_candidates
from lockstep.jobs.input.gangs import Gang
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.ends import EndKind, EndReason
from lockstep.jobs.running.order_parts import ServerOrder
from lockstep.jobs.running.orders import GANG_ORDER, GangOrder
from lockstep.jobs.running.states import JobEvent
from lockstep.service.control.ends import JobEnds
from lockstep.service.control.evidence import Evidence
from lockstep.service.control.job_inputs import current_order_of, gang_of, order_of, training_input_of
from lockstep.service.control.orders import gang_order
from lockstep.service.control.provisioner import Provisioner
from lockstep.service.prediction.containers import order_container
from lockstep.service.security.job_folders import job_folders
from lockstep.service.security.vault import Vault
from lockstep.service.settings import Settings
from lockstep.service.store import JobKind, JobRecord, JobStore, Lease, ModelStore, VersionRecord
from lockstep.serving import SERVER_TOKEN
from lockstep.topology import CLUSTER_TOKEN

MAX_ATTEMPTS: Final = 3
"""The maximum number of times that a gang is placed if its programs were never observed to run."""

READY_WITHIN_S: Final = 600.0
"""How long a prediction server may take to load and compile its model, in seconds."""
SILENT_WITHIN_S: Final = 3.0
"""The time without a heartbeat after which a prediction server is replaced, in seconds."""
SERVER: Final = ServerOrder(ready_within_s=READY_WITHIN_S, silent_within_s=SILENT_WITHIN_S)
"""How a prediction server is watched."""

NEVER_RAN: Final = EndReason(kind=EndKind.NODE_LOST, details=("before it ran",))
"""The end reason of an attempt that was lost before its programs ran."""


@final
class JobStarts:
    """Starts the gangs of jobs.

    Args:
        store: the store of jobs.
        models: the store of versions, whose files prediction servers get.
        lease: the lease, which this service must hold to start a gang.
        vault: the projects' secrets.
        cluster: the engine.
        catalogue: the catalogue of machines and prices.
        settings: the service's settings.
        ends: ends the jobs that cannot start.
        evidence: the evidence that gangs have left.
        provisioner: the provisioner; None if the cluster has a fixed set of nodes.
        clock: the clock, in seconds since 1970 UTC.
    """

    def __init__(
        self,
        *,
        store: JobStore,
        models: ModelStore,
        lease: Lease,
        vault: Vault,
        cluster: AbstractCluster,
        catalogue: Catalogue,
        settings: Settings,
        ends: JobEnds,
        evidence: Evidence,
        provisioner: Provisioner | None,
        clock: Callable[[], float],
    ) -> None:
        self._store = store
        self._models = models
        self._lease = lease
        self._vault = vault
        self._cluster = cluster
        self._catalogue = catalogue
        self._settings = settings
        self._ends = ends
        self._evidence = evidence
        self._folders = job_folders(settings)
        self._provisioner = provisioner
        self._clock = clock

    def prepare(self, job: JobRecord, *, nodes: Sequence[str]) -> None:
        """Records the order for a job's gang, and places the gang if it does not have to wait for machines.

        Args:
            job: the job, which is in the queue.
            nodes: the node of each replica.
        """
        self._ends.release_earlier(job)
        gang = gang_of(job, catalogue=self._catalogue)
        order = self._order(job, nodes=nodes, attempt=job.attempt)
        self._store.advance(
            job.uid,
            JobEvent.PREPARING,
            detail=f"placing {gang.describe()}" + (" (simulated)" if job.simulated else ""),
            gang_order=GANG_ORDER.dump_python(order, mode="json"),
            gang_released=False,
            moves=(),
            provisioning_time_s=job.provisioning_time_s or (None if self._provisioner is None else self._clock()),
        )
        if self._provisioner is None:  # otherwise it is placed once its machines are ready
            self._place(job, order)

    def place_if_ready(self, job: JobRecord, order: GangOrder, *, provisioner: Provisioner) -> None:
        """Places a gang once its machines are ready; requeues the job if one of the machines is unavailable."""
        ready = provisioner.ready()
        slots = [replica.node for replica in order.replicas]
        if all(slot in ready for slot in slots):
            replicas = tuple(replace(replica, machine=ready[replica.node]) for replica in order.replicas)
            placed = replace(order, replicas=replicas)
            self._store.update(job.uid, gang_order=GANG_ORDER.dump_python(placed, mode="json"))
            self._place(job, placed)
            return
        if self.fail_unprovisioned(job):
            return
        prepared_s = self._store.last_event_time_s(job.uid, kind=JobEvent.PREPARING)
        failures = provisioner.failures(slots, since_s=prepared_s)
        if failures:
            number = (job.candidate + 1) % num_candidates(training_input_of(job, candidate=0))
            self._store.advance(
                job.uid,
                JobEvent.REQUEUED,
                detail=f"currently unavailable: {failures[0]}",
                candidate=number,
                gang_order=None,
                gang_released=True,
            )

    def fail_unprovisioned(self, job: JobRecord) -> bool:
        """Fails a job whose machines were not ready within its provisioning timeout; returns whether it did."""
        limit_s = training_input_of(job).lockstep.provisioning_timeout_s
        if job.provisioning_time_s is None or self._clock() - job.provisioning_time_s <= limit_s:
            return False
        why = next((event.detail for event in reversed(self._store.events(job.uid)) if event.kind == "requeued"), "")
        message = f"its machines were not ready within {limit_s:.0f} s" + (f"; last reason: {why}" if why else "")
        details = (f"{limit_s:.0f} s",)
        self._ends.fail(job, None, EndReason(kind=EndKind.PROVISIONING_TIMEOUT, details=details), message)
        return True

    def replace_lost_gang(self, job: JobRecord) -> None:
        """Places a gang that the engine does not know: the service died before placing it, or the engine after that.

        It is not known whether the gang's programs ran, so this is another attempt, with its own log and spool folder.
        """
        earlier = [attempt.end_reason == str(NEVER_RAN) for attempt in self._store.attempts(job.uid)]
        num_lost = 1 + next((n for n, was_lost in enumerate(reversed(earlier)) if not was_lost), len(earlier))
        if num_lost >= MAX_ATTEMPTS:
            message = f"the engine lost the job {MAX_ATTEMPTS} times before it ran"
            self._ends.fail(job, None, EndReason(kind=EndKind.NODE_LOST), message)
            return
        lost = current_order_of(job)
        assert lost is not None, "a lost gang was placed before"
        attempt = job.attempt + 1
        order = self._order(job, nodes=[replica.node for replica in lost.replicas], attempt=attempt)
        self._store.update(
            job.uid,
            ended=self._ends.ended_attempt(job, None, reason=str(NEVER_RAN))[0],
            attempt=attempt,
            moves=(),
            gang_order=GANG_ORDER.dump_python(order, mode="json"),
        )
        self._evidence.remove_reports(lost)
        if self._provisioner is None:
            self._place(job, order)

    def _place(self, job: JobRecord, order: GangOrder) -> None:
        """Sends a recorded order to the engine, and adds the secrets, which are not recorded."""
        names = training_input_of(job).lockstep.secrets
        try:
            values = self._vault.values(project=job.project, names=names) if names else {}
        except (NotFoundError, CorruptDataError) as error:
            self._ends.fail(job, None, EndReason(kind=EndKind.USER_ERROR), str(error))
            return
        user = next((replica.user for replica in order.replicas if replica.user is not None), None)
        if self._folders is not None and user is not None:
            self._folders.open(job, user=user)
        if job.kind is JobKind.SERVER:
            values = {SERVER_TOKEN: self._vault.derive(job.uid, purpose=SERVER_TOKEN)}
        if any(replica.role == "ps" for replica in order.replicas):
            # Generated here and stored nowhere: if a gang is placed twice, the engine keeps the first order.
            values = {**values, CLUSTER_TOKEN: secrets.token_hex()}
        replicas = tuple(replace(replica, secrets=values) for replica in order.replicas)
        self._cluster.place(replace(order, replicas=replicas))

    def _order(self, job: JobRecord, *, nodes: Sequence[str], attempt: int) -> GangOrder:
        gang = gang_of(job, catalogue=self._catalogue)
        version = None if job.version_uid is None else self._models.get_version_by_uid(job.version_uid)
        order = gang_order(
            job,
            gang=gang,
            nodes=nodes,
            settings=self._settings,
            catalogue=self._catalogue,
            cluster=self._cluster,
            attempt=attempt,
            user=self._choose_user(job),
            server=None if version is None else self._server(version, gang=gang),
            files=job.files if version is None else version.files,
            gets_others=self._provisioner is not None,
        )
        if version is not None:
            order = order_container(order, version)
        assert self._lease.generation is not None, "who places a gang holds the lease"
        within_s = self._settings.place_within_s
        return replace(order, owner=self._lease.owner, generation=self._lease.generation, place_within_s=within_s)

    def _server(self, version: VersionRecord, *, gang: Gang) -> ServerOrder:
        """Returns how a prediction server of a version is watched, and what it may use."""
        machine = self._catalogue.machine_type(gang.replicas[0].machine_type)
        reserved = None if self._cluster.simulates_machines else machine.memory_mib * 2**20
        folder = self._settings.home.cache / "programs" / version.uid
        routes = None if version.container is None else version.container.routes
        return replace(SERVER, memory_bytes=SERVER.memory_bytes or reserved, programs_folder=str(folder), routes=routes)

    def _choose_user(self, job: JobRecord) -> int | None:
        """Returns the user id for a job's programs; None if they run as the service's own user.

        Raises:
            EngineError: If no user id is free.
        """
        if self._settings.users is None:
            return None
        pool = self._settings.users
        orders = [order_of(other) for other in self._store.placed_jobs() if other.uid != job.uid]
        taken = {replica.user for order in orders if order for replica in order.replicas if replica.user is not None}
        user = pool.choose(job.uid, taken=taken)
        if user is None:
            raise EngineError(f"no user id of {pool.first}-{pool.last} is free for another job's programs")
        return user
