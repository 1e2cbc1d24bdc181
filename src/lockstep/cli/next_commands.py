"""The next useful command for a job, by its state."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lockstep.cli.trials import is_search

_OVER: Final = ("SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED")


def next_command(job: Mapping[str, Any], *, models: Sequence[str] = ()) -> str:
    """Returns the next useful command for a job, with what it is for; empty if there is none.

    Args:
        job: the job, in the contract's JSON form.
        models: the URLs of the models that it saved.
    """
    name = shlex.quote(job["jobId"])
    if is_search(job):
        return f"to see its trials: lockstep trials {name}"
    if job["state"] == "FAILED":
        return f"to see the first error: lockstep logs {name} --filter 'severity>=ERROR' --limit 1"
    if job["state"] == "SUCCEEDED" and any(url.endswith(".keras") for url in models):
        return f"to serve its model: lockstep deploy MODEL --job {name}"
    if job["state"] == "SUCCEEDED" and "predictions" in job["lockstep"]["outputs"]:
        return f"to see its files: lockstep bucket ls {shlex.quote(job['lockstep']['outputs']['predictions'])}"
    if job["state"] == "SUCCEEDED" and "model" in job["lockstep"]["outputs"]:
        return f"to see its files: lockstep artifacts {name}"
    return "" if job["state"] in _OVER else f"to follow its log: lockstep logs -f {name}"
