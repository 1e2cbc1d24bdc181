"""The models that a job left: which of them `deploy` takes, and what `describe` shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lockstep.client import Client
from lockstep.errors import ModelError, StorageError
from lockstep.jobs.running.states import JobState

NUM_NAMED: Final = 5


def model_urls(client: Client, job: Mapping[str, Any]) -> list[str]:
    """Returns where the models of a job that succeeded lie; where that cannot be found out, where they belong.

    Args:
        client: the client.
        job: the job.
    """
    belong = [job["lockstep"]["outputs"]["model"]]
    if job["state"] != JobState.SUCCEEDED:
        return belong
    try:
        return [model["url"] for model in client.job_models(job["jobId"])] or belong
    except StorageError:
        return belong


def model_to_deploy(urls: Sequence[str], *, job: Mapping[str, Any]) -> str:
    """Returns the URL of the one model that a job left.

    Checkpoints are models only where there is nothing else.

    Args:
        urls: of all the ``.keras`` files that it left.
        job: the job.

    Raises:
        ModelError: it left none, or several.
    """
    outputs = job["lockstep"]["outputs"]
    finished = [url for url in urls if not url.startswith(f"{outputs['checkpoints'].rstrip('/')}/")]
    candidates = finished or list(urls)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ModelError(
            f"job {job['jobId']} left no .keras file in {outputs['model'].rstrip('/').rpartition('/')[0]}",
            action='save one with lockstep.training.save_model(model, os.environ["AIP_MODEL_DIR"]), '
            "or name a file that lies elsewhere with --model-url",
        )
    shown = ", ".join(candidates[:NUM_NAMED])
    more = f" and {len(candidates) - NUM_NAMED} more" if len(candidates) > NUM_NAMED else ""
    raise ModelError(
        f"job {job['jobId']} left several models", received=f"{shown}{more}", action="choose one with --model-url"
    )
