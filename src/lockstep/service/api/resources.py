"""Records as the contract's JSON resources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from lockstep.jobs import JobState
from lockstep.jobs.scheduling import Waiting
from lockstep.service.store import JobRecord, KeyRecord, ModelRecord, OperationRecord, RecordedEvent, VersionRecord

TYPE_PREFIX = "type.googleapis.com/google.cloud.ml.v1."


def timestamp(time_s: float) -> str:
    """Returns seconds since 1970 as the contract writes a time: RFC 3339 in UTC."""
    return datetime.fromtimestamp(time_s, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def job_etag(job: JobRecord) -> str:
    """Returns a job's etag: it changes whenever the record does."""
    return f"v{job.version}"


def job_resource(
    job: JobRecord,
    *,
    waits: Waiting | None = None,
    coming: str | None = None,
    accrued: Mapping[str, Any] | None = None,
    nodes: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns a job as the contract's ``GoogleCloudMlV1__Job``.

    What the contract has no place for stands under ``lockstep``, which other clients pass over.

    Args:
        job: the job.
        waits: what a queued job waits for.
        coming: which of its machines a job that is being prepared waits for, in words.
        accrued: what it has cost so far, where its bill is not made yet.
        nodes: what its nodes cost, where they come and go.
    """
    units = (job.bill or {}).get("mlUnits")
    resource: dict[str, Any] = {
        "jobId": job.job_id,
        "trainingInput": dict(job.training_input),
        "createTime": timestamp(job.create_time_s),
        "state": job.state.value,
        "trainingOutput": {} if units is None else {"consumedMLUnits": float(units)},
        "etag": job_etag(job),
    }
    if job.state is JobState.RUNNING and job.training_input.get("enableWebAccess"):
        resource["trainingOutput"]["webAccessUris"] = {
            replica["name"]: f"/v1/projects/{job.project}/jobs/{job.job_id}/replicas/{replica['name']}:exec"
            for replica in job.replicas
        }
    if job.labels:
        resource["labels"] = dict(job.labels)
    if job.start_time_s is not None:
        resource["startTime"] = timestamp(job.start_time_s)
    if job.end_time_s is not None:
        resource["endTime"] = timestamp(job.end_time_s)
    if job.error_message:
        resource["errorMessage"] = job.error_message
    if waits is not None:
        resource["jobPosition"] = str(waits.position)
    resource["lockstep"] = {
        "simulated": job.simulated,
        "waitingFor": coming if waits is None else _words(waits),
        "endReason": job.end_reason,
        "numRestarts": job.num_restarts,
        "submittedBy": job.submitted_by,
        "replicas": list(job.replicas),
        "progress": job_progress(job),
        "outputs": dict(job.outputs),
        "bill": job.bill,
        "accrued": accrued,
        "nodes": nodes,
    }
    return resource


def job_progress(job: JobRecord) -> Mapping[str, Any] | None:
    """Returns how far the job is: its first replica that says so leads."""
    return next((replica["progress"] for replica in job.replicas if replica.get("progress")), None)


def _words(waits: Waiting) -> str:
    latest = "" if waits.start_by_s is None else f"; it starts by {timestamp(waits.start_by_s)} at the latest"
    return f"position {waits.position}: {waits.reason}{latest}"


def event_resources(events: Sequence[RecordedEvent]) -> list[dict[str, Any]]:
    """Returns a job's events."""
    return [
        {"time": timestamp(event.time_s), "kind": event.kind, "state": event.state, "detail": event.detail}
        for event in events
    ]


def key_resource(key: KeyRecord) -> dict[str, Any]:
    """Returns a key; its secret, and the digest of it, stay where they are."""
    return {
        "key": key.id,
        "label": key.label,
        "scope": key.scope.value,
        "project": key.project,
        "createdBy": key.created_by,
        "createTime": timestamp(key.create_time_s),
        "expireTime": None if key.expire_time_s is None else timestamp(key.expire_time_s),
        "lastUsedTime": None if key.last_used_time_s is None else timestamp(key.last_used_time_s),
        "revokeTime": None if key.revoke_time_s is None else timestamp(key.revoke_time_s),
        "revokedBy": key.revoked_by,
    }


def model_resource(model: ModelRecord, *, default: VersionRecord | None) -> dict[str, Any]:
    """Returns a model as the contract's ``GoogleCloudMlV1__Model``."""
    resource: dict[str, Any] = {"name": f"projects/{model.project}/models/{model.name}"}
    if model.description:
        resource["description"] = model.description
    if model.labels:
        resource["labels"] = dict(model.labels)
    if default is not None:
        resource["defaultVersion"] = version_resource(default, is_default=True)
    return resource


def version_resource(version: VersionRecord, *, is_default: bool) -> dict[str, Any]:
    """Returns a version as the contract's ``GoogleCloudMlV1__Version``."""
    resource: dict[str, Any] = {
        "name": f"projects/{version.project}/models/{version.model}/versions/{version.name}",
        "deploymentUri": version.deployment_uri,
        "createTime": timestamp(version.create_time_s),
        "machineType": version.machine_type,
        "state": version.state.value,
        "manualScaling": {"nodes": 1},
    }
    if version.description:
        resource["description"] = version.description
    if version.labels:
        resource["labels"] = dict(version.labels)
    if version.error_message:
        resource["errorMessage"] = version.error_message
    if is_default:
        resource["isDefault"] = True
    return resource


def operation_resource(operation: OperationRecord, *, version: VersionRecord | None = None) -> dict[str, Any]:
    """Returns an operation as ``GoogleLongrunning__Operation``; a finished creation carries its version."""
    model_name = f"projects/{operation.project}/models/{operation.model}"
    metadata: dict[str, Any] = {
        "@type": f"{TYPE_PREFIX}OperationMetadata",
        "operationType": operation.kind,
        "createTime": timestamp(operation.create_time_s),
        "modelName": model_name,
    }
    if version is not None:
        metadata["version"] = version_resource(version, is_default=False)
    resource: dict[str, Any] = {
        "name": f"projects/{operation.project}/operations/{operation.name}",
        "metadata": metadata,
    }
    if operation.end_time_s is not None:
        metadata["endTime"] = timestamp(operation.end_time_s)
        resource["done"] = True
        if operation.error_code is not None:
            resource["error"] = {"code": operation.error_code, "message": operation.error_message}
        elif version is not None:
            resource["response"] = {
                "@type": f"{TYPE_PREFIX}Version",
                **version_resource(version, is_default=False),
            }
        else:
            resource["response"] = {"@type": "type.googleapis.com/google.protobuf.Empty"}
    return resource
