"""Converts records to the contract's JSON resources."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast, final

from lockstep.jobs.input.hyperparameters import DEFAULT_METRIC
from lockstep.jobs.input.spec import running_python_version
from lockstep.jobs.running.states import JobState
from lockstep.jobs.scheduling import Waiting
from lockstep.service.api.billing.bills import bill_form
from lockstep.service.api.control.replicas import job_progress_form, replica_form
from lockstep.service.api.forms import (
    AttemptForm,
    BillForm,
    EventForm,
    JobForm,
    JobWebhookForm,
    KeyForm,
    ModelForm,
    NodeCostsForm,
    OperationForm,
    OperationMetadataForm,
    OwnModelForm,
    OwnVersionForm,
    PredictionOutputForm,
    TrainingOutputForm,
    VersionForm,
)
from lockstep.service.api.prediction.batching import batching_form
from lockstep.service.api.prediction.containers import container_form, routes_form
from lockstep.service.api.prediction.scaling import auto_scaling_form, own_auto_scaling_form
from lockstep.service.control.job_inputs import order_of
from lockstep.service.store import (
    JobRecord,
    KeyRecord,
    ModelRecord,
    OperationRecord,
    RecordedEvent,
    TrafficChange,
    VersionRecord,
    VersionState,
    split_of,
)

TYPE_PREFIX = "type.googleapis.com/google.cloud.ml.v1."


def timestamp(time_s: float) -> str:
    """Returns a time in seconds since 1970 UTC as the contract writes it: RFC 3339 in UTC."""
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_etag(job: JobRecord) -> str:
    """Returns a job's etag. It changes whenever the job's labels change, the only part that an owner may change."""
    return f"v{job.version}"


def model_etag(model: ModelRecord) -> str:
    """Returns a model's etag. It changes whenever somebody changes the model, and with its creation."""
    return f"{model.create_time_s * 1000:.0f}-{model.revision}"


def version_etag(version: VersionRecord) -> str:
    """Returns a version's etag. It changes whenever somebody changes the version, and with its creation."""
    return f"{version.uid[:8]}-{version.revision}"


@final
@dataclass(frozen=True, kw_only=True)
class _Field:
    """A field of a job in the contract.

    Attributes:
        columns: the columns of a job's record that the field is computed from.
        read: computes the field from a record, or from a row with these columns; returns None if the job does not have
            the field.
    """

    columns: tuple[str, ...]
    read: Callable[[Any], Any]


def _training_output(job: Any) -> TrainingOutputForm | None:
    if job.prediction_input is not None:
        return None
    units = None if job.bill is None else job.bill.ml_units
    output: TrainingOutputForm = {} if units is None else {"consumedMLUnits": float(units)}
    search = job.training_input.get("hyperparameters")
    if search is not None:
        output["isHyperparameterTuningJob"] = True
        output["hyperparameterMetricTag"] = search.get("hyperparameterMetricTag", DEFAULT_METRIC)
    if job.state == JobState.RUNNING and job.training_input.get("enableWebAccess"):
        order = order_of(job)
        output["webAccessUris"] = {
            replica.name: f"/v1/projects/{job.project}/jobs/{job.job_id}/replicas/{replica.name}:exec"
            for replica in (() if order is None else order.replicas)
        }
    return output


def _optional_timestamp(time_s: float | None) -> str | None:
    return None if time_s is None else timestamp(time_s)


_JOB_FIELDS: Final[Mapping[str, _Field]] = {
    "jobId": _Field(columns=("job_id",), read=lambda job: job.job_id),
    "trainingInput": _Field(
        columns=("training_input", "prediction_input"),
        read=lambda job: job.training_input if job.prediction_input is None else None,
    ),
    "predictionInput": _Field(columns=("prediction_input",), read=lambda job: job.prediction_input),
    "createTime": _Field(columns=("create_time_s",), read=lambda job: timestamp(job.create_time_s)),
    "state": _Field(columns=("state",), read=lambda job: str(job.state)),
    "trainingOutput": _Field(
        columns=(
            *("project", "job_id", "state", "training_input", "prediction_input"),
            *("attempt", "gang_order", "bill"),
        ),
        read=_training_output,
    ),
    "etag": _Field(columns=("version",), read=lambda job: job_etag(job)),
    "labels": _Field(columns=("labels",), read=lambda job: job.labels or None),
    "startTime": _Field(columns=("start_time_s",), read=lambda job: _optional_timestamp(job.start_time_s)),
    "endTime": _Field(columns=("end_time_s",), read=lambda job: _optional_timestamp(job.end_time_s)),
    "errorMessage": _Field(columns=("error_message",), read=lambda job: job.error_message or None),
}


def job_columns(fields: Collection[str]) -> frozenset[str]:
    """Returns the columns that some fields of a job are computed from."""
    return frozenset(column for field in fields if field in _JOB_FIELDS for column in _JOB_FIELDS[field].columns)


def job_fields(job: Any, *, fields: Collection[str] = tuple(_JOB_FIELDS)) -> dict[str, Any]:
    """Returns fields of a job in the contract's JSON.

    Args:
        job: a `JobRecord`, or a row of the columns that `job_columns` returns.
        fields: the names of the fields; all if omitted. Fields that are not computed from the job alone, such as its
            position, are skipped.
    """
    made = {name: _JOB_FIELDS[name].read(job) for name in fields if name in _JOB_FIELDS}
    return {name: value for name, value in made.items() if value is not None}


def job_resource(
    job: JobRecord,
    *,
    waits: Waiting | None = None,
    missing_machines: str | None = None,
    accrued: BillForm | None = None,
    attempts: list[AttemptForm] | None = None,
    nodes: NodeCostsForm | None = None,
    webhooks: list[JobWebhookForm] | None = None,
    predicted: PredictionOutputForm | None = None,
    searched: TrainingOutputForm | None = None,
) -> JobForm:
    """Returns a job as the contract's ``GoogleCloudMlV1__Job``.

    Fields that are not in the contract are under ``lockstep``, which other clients ignore.

    Args:
        job: the job.
        waits: the position of a queued job, and what it waits for; None if it does not wait in the queue.
        missing_machines: a description of the machines that the job waits for; None if it waits for none.
        accrued: the cost so far of a job that has run and has no bill yet, else None.
        attempts: the attempts; None if they were not read.
        nodes: the cost of the job's nodes; None if it was not read or the job has no nodes in the ledger.
        webhooks: the states of the job's webhooks; None if they were not read.
        predicted: what a batch prediction has predicted so far; None for another job.
        searched: what the trials of a search have come to so far; None for another job, or if they were not read.
    """
    # The fields come from a table that filters use too. Tests check real responses against the form.
    resource = cast("JobForm", job_fields(job))
    resource["lockstep"] = {
        "simulated": job.simulated,
        "waitingFor": missing_machines if waits is None else describe_waiting(waits),
        "endReason": job.end_reason,
        "numRestarts": job.num_restarts,
        "submittedBy": job.submitted_by,
        "replicas": [replica_form(replica, simulated=job.simulated) for replica in job.replicas],
        "progress": job_progress_form(job),
        "outputs": dict(job.outputs),
        "bill": None if job.bill is None else bill_form(job.bill, simulated=job.simulated),
        "accrued": accrued,
        "attempts": attempts,
        "nodes": nodes,
        "webhooks": webhooks,
    }
    if predicted is not None:
        resource["predictionOutput"] = predicted
    if searched is not None:
        resource["trainingOutput"] = {**resource.get("trainingOutput", {}), **searched}
    if waits is not None:
        resource["jobPosition"] = str(waits.position)
    return resource


def describe_waiting(waits: Waiting) -> str:
    """Describes a position in the queue, and what the job waits for."""
    latest = "" if waits.start_by_s is None else f"; it starts by {timestamp(waits.start_by_s)} at the latest"
    return f"position {waits.position}: {waits.reason}{latest}"


def event_resources(events: Sequence[RecordedEvent]) -> list[EventForm]:
    """Returns a job's events."""
    return [
        {
            "time": timestamp(event.time_s),
            "recordedTime": timestamp(event.recorded_time_s),
            "kind": event.kind,
            "state": event.state,
            "detail": event.detail,
        }
        for event in events
    ]


def key_resource(key: KeyRecord) -> KeyForm:
    """Returns a key, without its secret and the digest of its secret."""
    return {
        "key": key.id,
        "label": key.label,
        "scope": key.scope,
        "project": key.project,
        "createdBy": key.created_by,
        "createTime": timestamp(key.create_time_s),
        "expireTime": None if key.expire_time_s is None else timestamp(key.expire_time_s),
        "lastUsedTime": None if key.last_used_time_s is None else timestamp(key.last_used_time_s),
        "revokeTime": None if key.revoke_time_s is None else timestamp(key.revoke_time_s),
        "revokedBy": key.revoked_by,
        "model": key.model,
        "version": key.model_version,
        "requestsPerSecond": key.requests_per_second,
    }


def model_resource(
    model: ModelRecord, *, default: VersionRecord | None, changes: Sequence[TrafficChange] | None = None
) -> ModelForm:
    """Returns a model as the contract's ``GoogleCloudMlV1__Model``.

    Args:
        model: the model.
        default: its default version; None if it has none.
        changes: the latest changes of its traffic; None if they were not read.
    """
    resource: ModelForm = {
        "name": f"projects/{model.project}/models/{model.name}",
        "onlinePredictionConsoleLogging": True,
        "etag": model_etag(model),
    }
    if model.region is not None:
        resource["regions"] = [model.region]
    if model.description:
        resource["description"] = model.description
    if model.labels:
        resource["labels"] = dict(model.labels)
    if default is not None:
        resource["defaultVersion"] = version_resource(default, is_default=True)
    if own := _own_model(model, changes=changes):
        resource["lockstep"] = own
    return resource


def _own_model(model: ModelRecord, *, changes: Sequence[TrafficChange] | None) -> OwnModelForm:
    own: OwnModelForm = {}
    if model.traffic:
        own["trafficSplit"] = split_of(model.traffic)
    if model.max_versions is not None:
        own["maxVersions"] = model.max_versions
    if changes:
        own["trafficChanges"] = [
            {
                "time": timestamp(change.time_s),
                "changedBy": change.changed_by,
                "trafficSplit": split_of(change.traffic),
            }
            for change in changes
        ]
    return own


def version_resource(
    version: VersionRecord, *, is_default: bool, waiting_for: str | None = None, num_ready_servers: int | None = None
) -> VersionForm:
    """Returns a version as the contract's ``GoogleCloudMlV1__Version``.

    Args:
        version: the version.
        is_default: whether it is the default of its model.
        waiting_for: what it waits for; None if it waits for nothing, or if that was not read.
        num_ready_servers: the number of its prediction servers that are ready now; None if that was not read.
    """
    resource: VersionForm = {
        "name": f"projects/{version.project}/models/{version.model}/versions/{version.name}",
        "deploymentUri": version.deployment_uri,
        "createTime": timestamp(version.create_time_s),
        "machineType": version.machine_type,
        "state": version.state,
        "etag": version_etag(version),
    }
    if version.accelerator is not None:
        resource["acceleratorConfig"] = {
            "count": str(version.accelerator.count),
            "type": version.accelerator.type.value,
        }
    if version.framework is not None:
        resource["framework"] = version.framework
    # The service, and so its servers, may run on another Python since.
    if version.python_version is not None and version.python_version == running_python_version():
        resource["pythonVersion"] = version.python_version
    if version.last_use_time_s is not None:
        resource["lastUseTime"] = timestamp(version.last_use_time_s)
    if version.scaling is None:
        resource["manualScaling"] = {"nodes": version.num_servers}
    else:
        resource["autoScaling"] = auto_scaling_form(version.scaling)
    if version.description:
        resource["description"] = version.description
    if version.labels:
        resource["labels"] = dict(version.labels)
    if version.error_message and version.state is not VersionState.CREATING:  # until then, it may still succeed
        resource["errorMessage"] = version.error_message
    if version.package_uris:
        resource["packageUris"] = list(version.package_uris)
    if version.prediction_class is not None:
        resource["predictionClass"] = version.prediction_class
    if version.container is not None:
        resource["container"] = container_form(version.container)
        resource["routes"] = routes_form(version.container)
    own: OwnVersionForm = {}
    if version.scaling is not None:
        own["autoScaling"] = own_auto_scaling_form(version.scaling)
        own["numServers"] = version.num_servers
    if num_ready_servers is not None:
        own["numReadyServers"] = num_ready_servers
    if version.python_module is not None:
        own["pythonModule"] = version.python_module
    if version.request_logging is not None:
        logging = version.request_logging
        own["requestLogging"] = {"samplingPercentage": logging.sampling, "uri": logging.url}
    if version.batching is not None:
        own["batching"] = batching_form(version.batching)
    if waiting_for is not None:
        own["waitingFor"] = waiting_for
    if own:
        resource["lockstep"] = own
    if is_default:
        resource["isDefault"] = True
    return resource


def operation_resource(
    operation: OperationRecord,
    *,
    model: ModelForm | None = None,
    version: VersionForm | None = None,
) -> OperationForm:
    """Returns an operation as ``GoogleLongrunning__Operation``.

    Args:
        operation: the operation.
        model: the model, if the operation is a change of it, which includes it when it is done.
        version: the version, if the operation is on one. A creation or a change includes it when it is done.
    """
    time = timestamp(operation.create_time_s)
    metadata: OperationMetadataForm = {
        "@type": f"{TYPE_PREFIX}OperationMetadata",
        "operationType": operation.kind,
        "createTime": time,
        "startTime": time,  # no operation waits for another one
        "modelName": f"projects/{operation.project}/models/{operation.model}",
    }
    if version is not None:
        metadata["version"] = version
    labels = (version or model or {}).get("labels")
    if labels:
        metadata["labels"] = labels
    if operation.is_cancellation_requested:
        metadata["isCancellationRequested"] = True
    resource: OperationForm = {
        "name": f"projects/{operation.project}/operations/{operation.name}",
        "metadata": metadata,
    }
    if operation.end_time_s is not None:
        metadata["endTime"] = timestamp(operation.end_time_s)
        resource["done"] = True
        if operation.error_code is not None:
            resource["error"] = {"code": operation.error_code, "message": operation.error_message}
        elif version is not None and operation.kind != "DELETE_VERSION":
            resource["response"] = {"@type": f"{TYPE_PREFIX}Version", **version}
        elif model is not None:
            resource["response"] = {"@type": f"{TYPE_PREFIX}Model", **model}
        else:
            resource["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
    return resource
