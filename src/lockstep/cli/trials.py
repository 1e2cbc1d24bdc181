"""``lockstep trials``, and the trials of a search in its summary."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, JobArgument, ProjectOption, connect, local_time

MAX_SHOWN: Final = 10
"""How many trials the summary of a search shows."""


@answers("TrialListForm", is_list=True, hints=True)
def trials(job: JobArgument, project: ProjectOption = DEFAULT_PROJECT) -> Answer:
    """List the trials of a search over hyperparameters, the best first.

    Each trial is a job: `lockstep logs JOB.3` prints the log of trial 3. After the columns of every trial, the list has
    a column for each parameter.
    """
    with connect(project) as client:
        found = client.trials(job)
    names = list(dict.fromkeys(name for trial in found for name in trial["hyperparameters"]))
    return Answer.of_list(
        {"trials": found},
        rows=found,
        columns=[*COLUMNS, *(_parameter(name) for name in names)],
        empty="no trial has begun",
        hint=f"to see the best one's log: lockstep logs {shlex.quote(found[0]['jobId'])}" if found else "",
    )


def is_search(job: Mapping[str, Any]) -> bool:
    """Returns whether a job, in the contract's JSON form, searches hyperparameters."""
    output = job.get("trainingOutput")
    return isinstance(output, Mapping) and bool(output.get("isHyperparameterTuningJob"))


def explain_search(job: Mapping[str, Any], command: str, *, what: str) -> str:
    """Returns why a search has nothing that a command could show, and which commands show that of its trials.

    Args:
        job: the search, in the contract's JSON form.
        command: the command, such as "lockstep logs".
        what: what the search lacks, such as "log".
    """
    name = job["jobId"]
    return (
        f"job {name} is a search, which has no {what} of its own; each of its trials has: "
        f"{command} {shlex.quote(f'{name}.1')}. To list them: lockstep trials {shlex.quote(name)}"
    )


def print_trials(job: Mapping[str, Any]) -> None:
    """Prints the best trials of a search, for its summary.

    Args:
        job: the search, in the contract's JSON form.
    """
    from rich.table import Table  # here, because the summaries of other jobs need none of it

    output = job["trainingOutput"]
    found: Sequence[Mapping[str, Any]] = output["trials"]
    over = sum(trial["state"] in ("SUCCEEDED", "FAILED", "CANCELLED") for trial in found)
    OUTPUT.print(
        f"  trials: {len(found)} begun, {over} over, "
        f"{output['completedTrialCount']} with a value of {output['hyperparameterMetricTag']}"
    )
    if not found:
        return
    names = list(found[0]["hyperparameters"])
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("    TRIAL", "STATE", "OBJECTIVE", "STEP", *(name.upper() for name in names)):
        table.add_column(title, no_wrap=True)
    for trial in found[:MAX_SHOWN]:
        values = (_shortened(trial["hyperparameters"].get(name, "-")) for name in names)
        table.add_row(f"    {trial['trialId']}", _state(trial), _objective_text(trial), _step(trial) or "-", *values)
    OUTPUT.print(table)
    if len(found) > MAX_SHOWN:
        OUTPUT.print(f"    and {len(found) - MAX_SHOWN} more: lockstep trials {shlex.quote(job['jobId'])}")


def _parameter(name: str) -> Column:
    return Column(
        name=name,
        title=name.upper(),
        value=lambda trial: trial["hyperparameters"].get(name),
        text=lambda trial: _shortened(trial["hyperparameters"].get(name, "-")),
    )


def _shortened(value: str) -> str:
    """Returns a value for people: a long number with six digits that count."""
    try:
        return value if len(value) <= 10 else f"{float(value):.6g}"
    except ValueError:
        return value


def _state(trial: Mapping[str, Any]) -> str:
    return "STOPPED EARLY" if trial["isTrialStoppedEarly"] else trial["state"]


def _objective(trial: Mapping[str, Any]) -> float | None:
    return trial["finalMetric"]["objectiveValue"] if "finalMetric" in trial else None


def _objective_text(trial: Mapping[str, Any]) -> str:
    value = _objective(trial)
    return "-" if value is None else f"{value:.6g}"


def _step(trial: Mapping[str, Any]) -> str | None:
    return trial["finalMetric"]["trainingStep"] if "finalMetric" in trial else None


def _cost_text(trial: Mapping[str, Any]) -> str:
    return "-" if trial["costUsd"] is None else f"${trial['costUsd']}"


COLUMNS: Final = (
    Column(name="jobId", title="TRIAL"),
    Column(name="state", title="STATE", text=_state),
    Column(name="objectiveValue", title="OBJECTIVE", value=_objective, text=_objective_text),
    Column(name="trainingStep", title="STEP", value=_step, text=lambda trial: _step(trial) or "-"),
    Column(name="startTime"),
    Column(name="endTime", title="ENDED", text=lambda trial: local_time(trial.get("endTime"))),
    Column(name="costUsd", title="COST", text=_cost_text),
    Column(name="isTrialStoppedEarly"),
    Column(name="endReason"),
)
"""The columns of every trial. A column for each parameter follows them."""
