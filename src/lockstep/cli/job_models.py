"""The models that a job saved, to show in summaries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from lockstep.errors import StorageError
from lockstep.jobs.running.states import JobState

if TYPE_CHECKING:
    from lockstep.client import Client


def model_urls(client: Client, job: Mapping[str, Any]) -> list[str]:
    """Returns the URLs of the models that a successful job saved.

    For other training jobs, or if no models are found, the only URL is that of the job's model folder. A batch
    prediction has none.

    Args:
        client: the client of the service.
        job: the job, in the contract's JSON form.
    """
    belong = [url for name, url in job["lockstep"]["outputs"].items() if name == "model"]
    if job["state"] != JobState.SUCCEEDED or not belong:
        return belong
    try:
        return [model["url"] for model in client.job_models(job["jobId"])] or belong
    except StorageError:
        return belong
