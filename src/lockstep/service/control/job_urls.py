"""The bucket URLs of a job's outputs, logs and metrics."""

from __future__ import annotations

from collections.abc import Mapping

from lockstep.jobs.input.documents import JobRequest
from lockstep.service.store import JobRecord
from lockstep.storage import join_url


def output_urls(request: JobRequest, *, bucket: str, project: str) -> dict[str, str]:
    """Returns the URLs of a job's outputs and logs: ``model``, ``checkpoints``, ``tensorboard`` and ``logs``.

    A batch prediction has ``predictions`` and ``logs``.

    Args:
        request: the job, which may specify a folder for outputs.
        bucket: the URL of the service's default bucket.
        project: the project of the job.
    """
    job_id, asked = request.job_id, request.training_input
    logs = join_url(bucket, project, "jobs", job_id, "logs")
    if request.prediction_input is not None:
        return {"predictions": request.prediction_input.output_url, "logs": logs}
    successors = asked.lockstep.base_output_directory
    base = asked.job_dir or successors or join_url(bucket, project, "jobs", job_id)
    return {
        "model": join_url(base, "model"),
        "checkpoints": join_url(base, "checkpoints"),
        "tensorboard": join_url(base, "tensorboard" if successors is None else "logs"),  # Vertex AI's name
        "logs": logs,
    }


def main_output_url(outputs: Mapping[str, str]) -> str:
    """Returns the URL that a job's programs certainly write below, given the URLs of its outputs."""
    return outputs["predictions"] if "predictions" in outputs else outputs["model"]


def log_url(job: JobRecord, *, replica: str, attempt: int) -> str:
    """Returns the bucket URL under which a replica's log segments appear."""
    # The uid separates the logs of jobs of the same name, from other services or an earlier database of this one.
    return join_url(job.outputs["logs"], job.uid, replica, f"attempt-{attempt:03d}")


def metrics_url(job: JobRecord, *, replica: str, attempt: int) -> str:
    """Returns the bucket URL under which a replica's metrics segments appear, beside its log."""
    return join_url(job.outputs["logs"], job.uid, replica, f"metrics-{attempt:03d}")
