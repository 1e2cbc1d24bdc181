"""What the job of a trial runs, and where its results go."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lockstep.jobs.tuning import Value, arguments_of
from lockstep.service.control.job_inputs import training_input_of
from lockstep.service.store import JobRecord
from lockstep.storage import join_url


def trial_input(search: JobRecord, *, number: int, parameters: Mapping[str, Value]) -> dict[str, Any]:
    """Returns the training input of a trial, in the contract's JSON.

    It is that of the search, with an argument for each parameter. The folder of its results is a folder of the
    search's, named by the number of the trial, as the contract says.

    Args:
        search: the search.
        number: the number of the trial, from 1.
        parameters: the values of its parameters, by name.
    """
    asked = {key: value for key, value in search.training_input.items() if key != "hyperparameters"}
    own = {key: value for key, value in asked.get("lockstep", {}).items() if key not in ("tuning", "webhooks")}
    if "baseOutputDirectory" in own:
        own["baseOutputDirectory"] = join_url(own["baseOutputDirectory"], str(number))
    asked["lockstep"] = own
    if not own:
        del asked["lockstep"]
    if "jobDir" in asked:
        asked["jobDir"] = join_url(asked["jobDir"], str(number))
    asked["args"] = [*asked.get("args", ()), *arguments_of(parameters)]
    return asked


def trial_outputs(search: JobRecord, *, number: int, bucket: str) -> dict[str, str]:
    """Returns the URLs of a trial's outputs and logs, by kind.

    Args:
        search: the search.
        number: the number of the trial.
        bucket: the URL of the service's default bucket.
    """
    asked = training_input_of(search)
    base = asked.job_dir or asked.lockstep.base_output_directory
    folder = join_url(base or join_url(bucket, search.project, "jobs", search.job_id), str(number))
    names = {kind: url.rpartition("/")[2] for kind, url in search.outputs.items() if kind != "logs"}
    logs = join_url(search.outputs["logs"], "trials", str(number))
    return {**{kind: join_url(folder, name) for kind, name in names.items()}, "logs": logs}
