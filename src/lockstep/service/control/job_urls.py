"""Where in the bucket a job's results, logs and metrics belong."""

from __future__ import annotations

from lockstep.jobs.input.spec import TrainingInput
from lockstep.service.store import JobRecord
from lockstep.storage import join_url


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


def log_url(job: JobRecord, *, replica: str, attempt: int) -> str:
    """Returns the bucket URL under which a replica's log segments appear."""
    # The uid keeps apart what two services, or two lives of one, wrote under the same job's name.
    return join_url(job.outputs["logs"], job.uid, replica, f"attempt-{attempt:03d}")


def metrics_url(job: JobRecord, *, replica: str, attempt: int) -> str:
    """Returns the bucket URL under which a replica's series of metrics appear, beside its log."""
    return join_url(job.outputs["logs"], job.uid, replica, f"metrics-{attempt:03d}")
