"""Builds the orders that the engine receives, from jobs in the database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from lockstep.jobs.input.gangs import Gang, Replica
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.order_parts import ContainerOrder, FileOrder, ServerOrder
from lockstep.jobs.running.orders import GangOrder, ReplicaOrder
from lockstep.jobs.tuning import TRIAL_NUMBER_VARIABLE, TRIAL_VARIABLE, TrialEnvironment
from lockstep.service.control.containers import container_order
from lockstep.service.control.job_inputs import training_input_of
from lockstep.service.control.job_urls import log_url, metrics_url
from lockstep.service.settings import Settings
from lockstep.service.store import JobRecord

_WATCHED_ROLES: Final = frozenset({"master", "worker"})
"""The roles whose programs can be stuck. Silence of other roles is normal: parameter servers and evaluators wait for
others."""


class AbstractAccelerators(Protocol):
    """The knowledge about machines and accelerators that orders need: of a cluster, or an assumption about one."""

    @property
    def simulates_machines(self) -> bool:
        """Whether machine types reserve nothing; see `AbstractCluster.simulates_machines`."""
        ...

    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        """Returns whether virtual devices would stand in for these accelerators; see `AbstractCluster.simulates`."""
        ...


def is_simulated(replica: Replica, *, gang: Gang, cluster: AbstractAccelerators) -> bool:
    """Returns whether virtual devices would stand in for a replica's accelerators.

    Of one type of accelerator, a gang has only real or only simulated ones: real ones must be enough for all replicas.
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
    server: ServerOrder | None = None,
    files: tuple[FileOrder, ...] = (),
    gets_others: bool = False,
) -> GangOrder:
    """Returns the order for one attempt of a job, on the nodes that the scheduler chose for its replicas.

    Args:
        job: the job.
        gang: the job's replicas.
        nodes: the nodes of the replicas, in the order of the gang.
        settings: the service's settings.
        catalogue: the catalogue of machines.
        cluster: the cluster, or an assumption about it.
        attempt: the number of the attempt, from 0.
        user: the user id that its programs run as; None for the service's own.
        server: how a prediction server is watched; None for other jobs.
        files: the files that its programs need in their working folders.
        gets_others: whether a lost machine is replaced by another one.
    """
    own = training_input_of(job).lockstep
    replicas = tuple(
        _replica_order(
            replica,
            job=job,
            node=node,
            attempt=attempt,
            user=user,
            container=container_order(
                replica,
                project=job.project,
                settings=settings,
                catalogue=catalogue,
                reserves=not cluster.simulates_machines,
            ),
            simulated=is_simulated(replica, gang=gang, cluster=cluster),
            server=server,
            files=files,
            settings=settings,
            catalogue=catalogue,
        )
        for replica, node in zip(gang, nodes, strict=True)
    )
    return GangOrder(
        gang_id=f"{job.uid}-{attempt}",
        replicas=replicas,
        restart_policy=own.restart_policy,
        num_restarts=job.num_restarts,
        move_within_s=own.provisioning_timeout_s if own.restart_policy.workers_move and gets_others else None,
    )


def _replica_order(
    replica: Replica,
    *,
    job: JobRecord,
    node: str,
    attempt: int,
    user: int | None,
    container: ContainerOrder | None,
    simulated: bool,
    server: ServerOrder | None,
    files: tuple[FileOrder, ...],
    settings: Settings,
    catalogue: Catalogue,
) -> ReplicaOrder:
    asked = training_input_of(job)
    accelerator = replica.accelerator
    machine = catalogue.machine_type(replica.machine_type)
    return ReplicaOrder(
        name=replica.name,
        role=replica.tf_role,
        index=replica.index,
        job=job.job_id,
        attempt=attempt,
        trial="" if job.trial is None else str(job.trial.number),
        command=_command(replica),
        container=container,
        environment={
            **({} if server else _cache(replica, settings=settings, user=user)),
            **replica.env,
            **_trial_environment(job),
        },
        packages=replica.package_uris,
        files=files,
        python_environment=asked.lockstep.environment,
        environment_cache="" if replica.image_uri else str(settings.home.environments(job.project)),
        user=None if replica.image_uri and server is None else user,  # to a server, there is a gateway
        spool=str(settings.home.spool / f"{job.uid}-{attempt}" / replica.name),
        log_url=log_url(job, replica=replica.name, attempt=attempt),
        metrics_url=metrics_url(job, replica=replica.name, attempt=attempt),
        model_dir=job.outputs.get("model"),
        checkpoint_dir=job.outputs.get("checkpoints"),
        tensorboard_dir=job.outputs.get("tensorboard"),
        accelerator_type=None if accelerator is None else accelerator.type.value,
        accelerator_count=0 if accelerator is None else accelerator.count,
        vcpus=machine.vcpus,
        memory_mib=machine.memory_mib,
        simulated=simulated,
        node=node,
        web_access=asked.enable_web_access,
        server=server,
        stuck_after_s=asked.lockstep.stuck_after_s if replica.role in _WATCHED_ROLES else None,
    )


def _command(replica: Replica) -> tuple[str, ...]:
    if replica.image_uri is not None:  # the arguments of the image's entry point
        return (*replica.container_args, *replica.args)
    return ("-m", replica.python_module or "", *replica.args)


def _trial_environment(job: JobRecord) -> dict[str, str]:
    """Returns the environment variables that tell a trial's program what it is; none for other jobs."""
    trial = job.trial
    if trial is None:
        return {}
    told = TrialEnvironment(number=trial.number, metric=trial.metric, parameters=trial.parameters)
    return {TRIAL_VARIABLE: told.to_text(), TRIAL_NUMBER_VARIABLE: str(trial.number)}


def _cache(replica: Replica, *, settings: Settings, user: int | None) -> dict[str, str]:
    """Returns the environment variable for the cache of compiled programs; empty for a replica without the cache.

    An image has its own compilers, and cannot access the node's cache. A program with its own user id does not get the
    cache either, because one job would run what another job has put there. Prediction servers have a cache for each
    version (`lockstep.runner.compiled_programs`).
    """
    if replica.image_uri is not None or user is not None:
        return {}
    return {"JAX_COMPILATION_CACHE_DIR": str(settings.home.cache / "xla")}
