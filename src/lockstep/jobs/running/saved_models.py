"""Chooses what to deploy among the models that a job saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from lockstep.errors import ModelError

NUM_NAMED: Final = 5


def model_to_deploy(urls: Sequence[str], *, job: Mapping[str, Any]) -> str:
    """Returns the URL of the only model that a job saved.

    Files in the job's checkpoint folder count only if there are no others.

    Args:
        urls: the URLs of all ``.keras`` files that the job saved.
        job: the job, in the contract's JSON form.

    Raises:
        ModelError: the job saved no model, or several.
    """
    outputs = job["lockstep"]["outputs"]
    if "model" not in outputs:
        raise ModelError(f"job {job['jobId']} is a batch prediction, which saves no model")
    finished = [url for url in urls if not url.startswith(f"{outputs['checkpoints'].rstrip('/')}/")]
    candidates = finished or list(urls)
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ModelError(
            f"job {job['jobId']} saved no .keras file in {outputs['model'].rstrip('/').rpartition('/')[0]}",
            action='save one with lockstep.training.save_model(model, os.environ["AIP_MODEL_DIR"]), '
            "or name a file that is elsewhere with --model-url",
        )
    shown = ", ".join(candidates[:NUM_NAMED])
    more = f" and {len(candidates) - NUM_NAMED} more" if len(candidates) > NUM_NAMED else ""
    raise ModelError(
        f"job {job['jobId']} saved several models", received=f"{shown}{more}", action="choose one with --model-url"
    )


def folder_to_deploy(urls: Sequence[str], *, job: Mapping[str, Any]) -> str:
    """Returns the URL of the folder that a custom prediction routine gets: that of the model, with all files beside it.

    If the job saved no ``.keras`` file, this is the folder for models that the job was given.

    Args:
        urls: the URLs of all ``.keras`` files that the job saved.
        job: the job, in the contract's JSON form.

    Raises:
        ModelError: the job saved several models, or it is a batch prediction.
    """
    if not urls and "model" in job["lockstep"]["outputs"]:
        return str(job["lockstep"]["outputs"]["model"])
    return model_to_deploy(urls, job=job).rpartition("/")[0]
