"""Previews a job without recording it: replicas, machines, commands, environment variables, outputs, price."""

from __future__ import annotations

import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, final

from lockstep.jobs.billing.bills import ReplicaUsage, bill
from lockstep.jobs.input.documents import JobRequest
from lockstep.jobs.input.gangs import Gang, Replica, describe_machine
from lockstep.jobs.input.hyperparameters import HyperparameterSpec
from lockstep.jobs.input.predictions import ignored_in_prediction
from lockstep.jobs.input.spec import ignored
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.order_parts import ContainerOrder
from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.jobs.running.states import JobState
from lockstep.jobs.tuning import num_trials, propose
from lockstep.runner.containers import CONTAINER_PASSED_ON
from lockstep.runner.environment import PASSED_ON, program_environment
from lockstep.service.api.forms import (
    ContainerPreviewForm,
    CostPreviewForm,
    PreviewForm,
    PricePreviewForm,
    QueuePreviewForm,
    ReplicaPreviewForm,
)
from lockstep.service.control.job_inputs import gang_of, training_input_of
from lockstep.service.control.job_urls import output_urls
from lockstep.service.control.orders import AbstractAccelerators, gang_order
from lockstep.service.control.queue_records import QueuePosition
from lockstep.service.settings import Settings
from lockstep.service.store import JobKind, JobRecord, TrialRecord, trial_job_id
from lockstep.service.tuning.trial_inputs import trial_input, trial_outputs
from lockstep.topology import CLUSTER_TOKEN

GIVEN: Final = "(as given)"
"""The placeholder for the values of a job's own variables, which may be secrets."""

RANDOM: Final = "(random, the same for all replicas)"
"""The placeholder for values that are generated when a job's gang is placed."""

ENTRY_POINT: Final = "(the image's entry point)"
"""The placeholder for the entry point of an image."""

_HOUR_S: Final = 3600.0
_HOST: Final = "HOST-OF-"
_PORT: Final = 65535
"""Stands for every port until placeholders replace it: a topology accepts only valid ports."""
_ADDRESS: Final = re.compile(rf"({_HOST}[a-z0-9-]+):{_PORT}")


@final
class NoAccelerators:
    """The assumption about a cluster that cannot be queried: it is the embedded one, without accelerators."""

    @property
    def simulates_machines(self) -> bool:
        """True: machine types reserve nothing."""
        return True

    def simulates(self, accelerator_type: str, *, count: int) -> bool:
        """Returns True: there are no real accelerators."""
        return True


def unrecorded(request: JobRequest, *, project: str, settings: Settings) -> JobRecord:
    """Returns a job as it would be recorded now, with a uid that no recorded job has."""
    asked = request.training_input
    return JobRecord(
        uid="UID",
        project=project,
        job_id=request.job_id,
        training_input=asked.redacted().to_json(),
        prediction_input=None if request.prediction_input is None else request.prediction_input.to_json(),
        labels=request.labels,
        state=JobState.QUEUED,
        version=0,
        priority=asked.scheduling.priority,
        max_wait_time_s=asked.scheduling.max_wait_time_s,
        create_time_s=time.time(),
        outputs=output_urls(request, bucket=settings.bucket, project=project),
    )


def preview(
    request: JobRequest,
    *,
    project: str,
    settings: Settings,
    catalogue: Catalogue,
    cluster: AbstractAccelerators,
    first_of_roles: bool = False,
) -> PreviewForm:
    """Returns the preview of a job, as JSON.

    Values that are not known before the job is placed (addresses, the uid) have placeholders. So have the values of
    the job's own variables and secrets.

    Args:
        request: the job.
        project: the project of the job.
        settings: the service's settings.
        catalogue: the catalogue of machines and prices.
        cluster: the cluster, or an assumption about it, that tells which accelerators are simulated.
        first_of_roles: whether only the first replica of each role is shown, with ``replicasLikeIt``. A replica names
            the addresses of all others, so all of a thousand would be a million addresses.

    Raises:
        ConfigError: If a machine type or a region of the job is not in the catalogue.
    """
    job, search = unrecorded(request, project=project, settings=settings), request.training_input.hyperparameters
    if search is not None:
        job = _first_trial(job, search, settings=settings)
    gang = gang_of(job, catalogue=catalogue)
    orders = gang_order(
        job, gang=gang, nodes=[""] * len(gang), settings=settings, catalogue=catalogue, cluster=cluster
    ).replicas
    addresses = _addresses(orders)
    counts = Counter(order.role for order in orders)
    pairs = list(zip(gang, orders, strict=True))
    if first_of_roles:
        pairs = list({order.role: (replica, order) for replica, order in reversed(pairs)}.values())[::-1]
    document: PreviewForm = {
        "jobId": request.job_id,
        "project": project,
        "labels": dict(job.labels),
        "replicas": [
            _replica(
                replica,
                order=order,
                addresses=addresses,
                catalogue=catalogue,
                secrets=request.training_input.lockstep.secrets,
                num_like_it=counts[order.role] if first_of_roles else None,
            )
            for replica, order in pairs
        ],
        "passedOn": sorted(PASSED_ON if orders[0].container is None else CONTAINER_PASSED_ON),
        "outputs": dict(job.outputs),
        "price": _price(gang, request=request, catalogue=catalogue),
        "ignored": ignored_lines(request),
    }
    if search is not None and job.trial is not None:
        document["search"] = {
            "numTrials": num_trials(search),
            "numParallelTrials": _num_gangs(search),
            "firstTrial": {name: str(value) for name, value in job.trial.parameters.items()},
        }
    if job.prediction_input is None:
        document["trainingInput"] = request.training_input.redacted().to_json()
    else:
        document["predictionInput"] = dict(job.prediction_input)
    return document


def _first_trial(job: JobRecord, search: HyperparameterSpec, *, settings: Settings) -> JobRecord:
    """Returns the first trial of a search that is not recorded, as it would be if the search resumes no other."""
    parameters = propose(search, trials=(), seed=training_input_of(job).lockstep.tuning.seed)
    assert parameters is not None, "every space has a point"
    return replace(
        job,
        job_id=trial_job_id(job.job_id, number=1),
        kind=JobKind.TRIAL,
        trial=TrialRecord(number=1, metric=search.hyperparameter_metric_tag, parameters=parameters),
        training_input=trial_input(job, number=1, parameters=parameters),
        outputs=trial_outputs(job, number=1, bucket=settings.bucket),
    )


def _num_gangs(search: HyperparameterSpec | None) -> int:
    """Returns how many gangs of a job run at a time."""
    return 1 if search is None else min(num_trials(search), search.max_parallel_trials)


def ignored_lines(request: JobRequest) -> list[str]:
    """Returns a line for each field of a job that this version ignores, with the reason."""
    asked = request.prediction_input
    return ignored(request.training_input) if asked is None else ignored_in_prediction(asked)


def queue_form(position: QueuePosition) -> QueuePreviewForm:
    """Returns the position that a job would have in the queue, as JSON."""
    waits = position.waits
    return {
        "needs": list(position.needs),
        "startsNow": waits is None,
        "position": None if waits is None else waits.position,
        "reason": None if waits is None else waits.reason,
        "startBySeconds": None if waits is None else waits.start_by_s,
    }


def _replica(
    replica: Replica,
    *,
    order: ReplicaOrder,
    addresses: Mapping[str, tuple[str, ...]],
    catalogue: Catalogue,
    secrets: Mapping[str, str],
    num_like_it: int | None,
) -> ReplicaPreviewForm:
    machine = catalogue.machine_type(replica.machine_type)
    variables = program_environment(replace(order, cluster=addresses), code=(), node={})
    for name in replica.env:
        variables[name] = GIVEN
    for name, secret in secrets.items():
        variables[name] = f"(secret {secret})"
    if "ps" in addresses:
        variables[CLUSTER_TOKEN] = RANDOM
    form: ReplicaPreviewForm = {
        "name": replica.name,
        "machine": describe_machine(replica.machine_type, accelerator=replica.accelerator),
        "vcpus": machine.vcpus,
        "memoryGib": machine.memory_gib,
        "acceleratorsSimulated": order.simulated,
        "container": None if order.container is None else _container(order.container),
        "command": _command(order),
        "packages": list(order.packages),
        "environment": {name: _with_placeholders(value) for name, value in variables.items()},
    }
    if num_like_it is not None:
        form["replicasLikeIt"] = num_like_it
    return form


def _container(container: ContainerOrder) -> ContainerPreviewForm:
    return {
        "image": container.image,
        "cpus": container.cpus,
        "memoryBytes": container.memory_bytes,
        "readable": list(container.readable),
    }


def _command(order: ReplicaOrder) -> list[str]:
    if order.container is None:
        return ["python", *order.command]
    return [*(order.container.entry_point or (ENTRY_POINT,)), *order.command]


def _addresses(orders: Sequence[ReplicaOrder]) -> dict[str, tuple[str, ...]]:
    """Returns placeholders for the addresses that the engine assigns, by role; none for a gang of one replica."""
    addresses: defaultdict[str, list[str]] = defaultdict(list)
    for order in orders:
        if order.role != "evaluator" and len(orders) > 1:
            addresses[order.role].append(f"{_HOST}{order.name}:{_PORT}")
    return {role: tuple(found) for role, found in addresses.items()}


def _with_placeholders(value: str) -> str:
    return "PORT" if value == str(_PORT) else _ADDRESS.sub(r"\1:PORT", value)


def _price(gang: Gang, *, request: JobRequest, catalogue: Catalogue) -> PricePreviewForm:
    """Returns what a job costs in an hour and at most; of a search, all trials that run at a time."""
    asked = request.training_input
    num_gangs = _num_gangs(asked.hyperparameters)
    longest_s = asked.scheduling.max_running_time_s

    def cost(running_s: float) -> CostPreviewForm:
        usages = [
            ReplicaUsage(
                replica=replica.name,
                machine_type=replica.machine_type,
                accelerator=replica.accelerator,
                region=asked.region,
                start_time_s=0.0,
                end_time_s=running_s,
            )
            for replica in gang
        ] * num_gangs
        charged = bill(usages, catalogue=catalogue)
        known = charged.ml_units is not None
        return {
            "mlUnits": str(charged.ml_units) if known else None,
            "costUsd": str(charged.cost_usd) if known else None,
            "unpriced": list(charged.unpriced),
        }

    machines = dict.fromkeys((replica.machine_type, replica.accelerator) for replica in gang)
    lists = [name for kind, owned in machines for name in catalogue.price_list_names(kind, accelerator=owned)]
    return {
        "region": catalogue.price_region(asked.region),
        "mlUnitUsd": f"{float(catalogue.ml_unit_usd(asked.region)):.2f}",
        "hour": cost(_HOUR_S),
        "most": cost(longest_s),
        "maxRunningSeconds": longest_s,
        "lists": list(dict.fromkeys(lists)),
    }
