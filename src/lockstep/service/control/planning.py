"""From a job in the database to the order that the engine gets, and to the bill that its owner gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from lockstep.jobs.billing.bills import Bill, ReplicaUsage, bill
from lockstep.jobs.billing.costs import Run
from lockstep.jobs.input.candidates import candidate as with_candidate
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import Gang, Replica, describe_machine, resolve
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.evidence import present_end_s
from lockstep.jobs.running.orders import GANG_ORDER, GangOrder, ReplicaOrder, ReplicaStatus
from lockstep.jobs.running.progress import Progress
from lockstep.service.api.forms import BillForm, ProgressForm, ReplicaForm
from lockstep.service.control.containers import container_order
from lockstep.service.settings import Settings
from lockstep.service.store import AttemptRecord, JobRecord, stays
from lockstep.storage import join_url

LIST_PRICE: Final = "list price"
_WATCHED_ROLES: Final = frozenset({"master", "worker"})
"""Those whose silence means something: parameter servers and evaluators wait for others."""

NOTHING_OWED: Final = "simulated machines, nothing owed"


def training_input_of(job: JobRecord, *, candidate: int | None = None) -> TrainingInput:
    """Returns what a job asks for, with one of its sets of machines.

    Args:
        job: the job.
        candidate: which set; the one that it has, or is to have, if left out.

    Raises:
        ConfigError: this version cannot read it.
    """
    source = f"job {job.job_id}"
    asked = parse_training_input({"trainingInput": job.training_input}, source=source)
    return with_candidate(asked, number=job.candidate if candidate is None else candidate, source=source)


def gang_of(job: JobRecord, *, catalogue: Catalogue) -> Gang:
    """Returns the replicas that a job asks for, on the machines that it has, or is to have.

    Raises:
        ConfigError: this version cannot read it.
    """
    return resolve(training_input_of(job), catalogue=catalogue)


def output_urls(asked: TrainingInput, *, bucket: str, project: str, job_id: str) -> dict[str, str]:
    """Returns where a job's results and logs belong.

    Args:
        asked: what the job asks for; it may name a folder of its own.
        bucket: the service's default bucket.
        project: the job's project.
        job_id: the job's name.
    """
    successors = asked.lockstep.base_output_directory
    base = asked.job_dir or successors or join_url(bucket, project, "jobs", job_id)
    return {
        "model": join_url(base, "model"),
        "checkpoints": join_url(base, "checkpoints"),
        "tensorboard": join_url(base, "tensorboard" if successors is None else "logs"),  # its name for it
        "logs": join_url(bucket, project, "jobs", job_id, "logs"),
    }


class AbstractAccelerators(Protocol):
    """What knows which machines and accelerators there are: a cluster, or a guess at one."""

    @property
    def simulates_machines(self) -> bool:
        """Whether a machine type is but a name; see `AbstractCluster.simulates_machines`."""
        ...

    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        """Says whether virtual devices would stand in for these accelerators; see `AbstractCluster.simulates`."""
        ...


def is_simulated(replica: Replica, *, gang: Gang, cluster: AbstractAccelerators) -> bool:
    """Says whether virtual devices would stand in for a replica's accelerators.

    They do for all of a gang or for none of it: real ones must be there for each replica at once.
    """
    if replica.accelerator is None:
        return False
    kind = replica.accelerator.type
    count = sum(member.accelerator.count for member in gang if member.accelerator and member.accelerator.type == kind)
    return cluster.simulates(kind.value, count=count)


def gang_order(
    job: JobRecord,
    *,
    gang: Gang,
    nodes: Sequence[str],
    settings: Settings,
    catalogue: Catalogue,
    cluster: AbstractAccelerators,
    attempt: int = 0,
    user: int | None = None,
    gets_others: bool = False,
) -> GangOrder:
    """Returns the order for one start of a job's gang, on the nodes that the scheduler chose for its replicas.

    Args:
        job: the job.
        gang: its replicas.
        nodes: their nodes.
        settings: the service's settings.
        catalogue: machines.
        cluster: the engine.
        attempt: which start it is, from 0.
        user: the user that its programs run as; None for the service's own.
        gets_others: whether a machine that is lost is replaced by another one.
    """
    gang_id = f"{job.uid}-{attempt}"
    asked = training_input_of(job)
    own = asked.lockstep
    replicas = tuple(
        ReplicaOrder(
            name=replica.name,
            role=replica.tf_role,
            index=replica.index,
            job=job.job_id,
            attempt=attempt,
            command=_command(replica),
            container=container_order(
                replica,
                project=job.project,
                settings=settings,
                catalogue=catalogue,
                reserves=not cluster.simulates_machines,
            ),
            environment={**_cache(replica, settings=settings, user=user), **replica.env},
            packages=replica.package_uris,
            python_environment=own.environment,
            environment_cache="" if replica.image_uri else str(settings.home.environments(job.project)),
            user=None if replica.image_uri else user,
            spool=str(settings.home.spool / gang_id / replica.name),
            log_url=log_url(job, replica=replica.name, attempt=attempt),
            metrics_url=metrics_url(job, replica=replica.name, attempt=attempt),
            model_dir=job.outputs["model"],
            checkpoint_dir=job.outputs["checkpoints"],
            tensorboard_dir=job.outputs["tensorboard"],
            accelerator_type=None if replica.accelerator is None else replica.accelerator.type.value,
            accelerator_count=0 if replica.accelerator is None else replica.accelerator.count,
            vcpus=catalogue.machine_type(replica.machine_type).vcpus,
            memory_mib=catalogue.machine_type(replica.machine_type).memory_mib,
            simulated=is_simulated(replica, gang=gang, cluster=cluster),
            node=node,
            web_access=asked.enable_web_access,
            stuck_after_s=own.stuck_after_s if replica.role in _WATCHED_ROLES else None,
        )
        for replica, node in zip(gang, nodes, strict=True)
    )
    return GangOrder(
        gang_id=gang_id,
        replicas=replicas,
        restart_policy=own.restart_policy,
        num_restarts=job.num_restarts,
        move_within_s=own.provisioning_timeout_s if own.restart_policy.workers_move and gets_others else None,
    )


def _command(replica: Replica) -> tuple[str, ...]:
    if replica.image_uri is not None:  # the arguments of its entry point
        return (*replica.container_args, *replica.args)
    return ("-m", replica.python_module or "", *replica.args)


def _cache(replica: Replica, *, settings: Settings, user: int | None) -> dict[str, str]:
    """Returns where compiled programs are kept.

    An image has compilers of its own, and sees no cache of the node. Neither does a program that runs as a user of its
    own: what one job put there, another would run.
    """
    if replica.image_uri is not None or user is not None:
        return {}
    return {"JAX_COMPILATION_CACHE_DIR": str(settings.home.cache / "xla")}


def log_url(job: JobRecord, *, replica: str, attempt: int) -> str:
    """Returns the bucket URL under which a replica's log segments appear."""
    # The uid keeps apart what two services, or two lives of one, wrote under the same job's name.
    return join_url(job.outputs["logs"], job.uid, replica, f"attempt-{attempt:03d}")


def metrics_url(job: JobRecord, *, replica: str, attempt: int) -> str:
    """Returns the bucket URL under which a replica's series of metrics appear, beside its log."""
    return join_url(job.outputs["logs"], job.uid, replica, f"metrics-{attempt:03d}")


def job_bill(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue) -> Bill:
    """Returns what a job cost: every replica's machine from the start (RUNNING) of each of its attempts to its end.

    A replica that waits for another machine while the others run on costs nothing as long as it does. A job that never
    ran consumed nothing.

    Raises:
        ConfigError: this version cannot read it.
    """
    return bill(usages_of(job, attempts=attempts, catalogue=catalogue), catalogue=catalogue)


def run_of(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue, now_s: float) -> Run:
    """Returns what a job ran; one that runs, up to now, or to the last sign of it where that is long ago.

    Args:
        job: the job.
        attempts: its starts that are over.
        catalogue: machines.
        now_s: seconds since 1970 UTC.
    """
    present = present_attempt(job, now_s=now_s)
    running = [] if present is None else [present]
    return Run(
        uid=job.uid,
        project=job.project,
        job=job.job_id,
        labels=dict(job.labels),
        simulated=job.simulated,
        usages=tuple(usages_of(job, attempts=[*attempts, *running], catalogue=catalogue)),
    )


def present_attempt(job: JobRecord, *, now_s: float) -> AttemptRecord | None:
    """Returns the start of a gang that runs as if it ended now, or with its last sign, where that is long ago.

    Args:
        job: the job.
        now_s: seconds since 1970 UTC.

    Returns:
        The start; None where none runs.
    """
    if job.run_start_time_s is None or job.end_time_s is not None:
        return None
    return AttemptRecord(
        attempt=job.attempt,
        candidate=job.candidate,
        start_time_s=job.run_start_time_s,
        end_time_s=present_end_s(_seen_times_s(job), now_s=now_s),
        end_reason=None,
        machines=machines_of(job),
        moves=job.moves,
    )


def _seen_times_s(job: JobRecord) -> list[float]:
    """Returns when a job's replicas were heard of; those that were recorded by an earlier version say nothing."""
    return [seen_s for replica in job.replicas if isinstance(seen_s := replica.get("seenTime"), float)]


def machines_of(job: JobRecord) -> tuple[str, ...]:
    """Returns the nodes that the replicas of a job have, by their names in the ledger; none where it has none of it.

    Of a replica that waits for another one, it is the one that it lost.
    """
    order = None if job.gang_order is None else GANG_ORDER.validate_python(job.gang_order)
    machines = () if order is None else tuple(replica.machine for replica in order.replicas)
    return machines if all(machines) else ()


def usages_of(job: JobRecord, *, attempts: Sequence[AttemptRecord], catalogue: Catalogue) -> list[ReplicaUsage]:
    """Returns what the replicas of a job ran in some of its starts.

    Raises:
        ConfigError: this version cannot read it.
    """
    usages: list[ReplicaUsage] = []
    for attempt in attempts:
        if attempt.start_time_s is None:
            continue
        asked = training_input_of(job, candidate=attempt.candidate)
        gang = resolve(asked, catalogue=catalogue)
        usages.extend(
            ReplicaUsage(
                replica=replica.name,
                machine_type=replica.machine_type,
                accelerator=replica.accelerator,
                region=asked.region,
                start_time_s=stay.start_time_s,
                end_time_s=stay.end_time_s,
                machine=stay.machine,
            )
            for replica, machine in zip(gang, attempt.machines or ("",) * len(gang), strict=True)
            for stay in stays(
                replica.name,
                machine=machine,
                moves=attempt.moves,
                start_time_s=attempt.start_time_s,
                end_time_s=attempt.end_time_s,
            )
        )
    return usages


def bill_document(charged: Bill, *, simulated: bool) -> BillForm:
    """Returns a bill as JSON; amounts as decimal strings, so that no cent is a float's."""
    prices = f"prices: {', '.join(charged.sources)}" if charged.has_own_prices else LIST_PRICE
    return {
        "mlUnits": None if charged.ml_units is None else str(charged.ml_units),
        "costUsd": None if charged.cost_usd is None else str(charged.cost_usd),
        "note": f"{prices}, {NOTHING_OWED}" if simulated else prices,
        "unpriced": list(charged.unpriced),
        "sources": list(charged.sources),
        "text": charged.describe(),
    }


def replica_document(status: ReplicaStatus, *, gang: Gang, simulated: bool) -> ReplicaForm:
    """Returns a replica's status with its machine, as JSON for people and programs."""
    replica = next(member for member in gang if member.name == status.name)
    machine = describe_machine(replica.machine_type, accelerator=replica.accelerator)
    end = status.end
    return {
        "name": status.name,
        "phase": status.phase.value,
        "machine": f"{machine} (simulated)" if simulated else machine,
        "host": status.host,
        "pid": status.pid,
        "placedTime": status.placed_time_s,
        "startedTime": status.started_time_s,
        "endedTime": status.ended_time_s,
        "seenTime": status.seen_time_s,
        "cpuSeconds": status.usage.cpu_s,
        "wallSeconds": status.usage.wall_s,
        "peakMemoryBytes": status.usage.peak_memory_bytes,
        "metrics": dict(status.metrics),
        "progress": None if status.progress is None else progress_document(status.progress),
        "end": None if end is None else end.describe(),
        "numLogEntries": None if end is None else end.num_log_entries,
        "restarts": [
            {"number": restart.number, "time": restart.time_s, "reason": restart.reason} for restart in status.restarts
        ],
    }


def progress_document(progress: Progress) -> ProgressForm:
    """Returns a program's progress as JSON."""
    return {
        "time": progress.time_s,
        "step": progress.step,
        "epoch": progress.epoch,
        "metrics": dict(progress.metrics),
        "notFinite": list(progress.not_finite),
        "stepsPerSecond": progress.steps_per_s,
        "examplesPerSecond": progress.examples_per_s,
        "text": progress.describe(),
    }
