"""Requests a profile of a running job, waits for it, and downloads it."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from lockstep.client.following import JOB_S, ask
from lockstep.errors import BackendError, DeadlineError, WrongStateError
from lockstep.jobs.running.states import TERMINAL

if TYPE_CHECKING:
    from lockstep.client.client import Client

LATE_S: Final = 30.0
"""How long after a request the service may not know of it yet, in seconds."""
_OUTPUT: Final = "tensorboard/"


def fetch_profile(
    client: Client, name: str, *, num_steps: int, replica: str | None, to: Path, timeout_s: float
) -> tuple[list[Path], int]:
    """Requests a profile, waits until it is complete, and downloads its files.

    Args:
        client: a client of the service.
        name: the job's name.
        num_steps: the number of steps.
        replica: the replica's name; None for the first one that has reported a step.
        to: the local folder, to which the files are written as in the job's TensorBoard folder.
        timeout_s: how long to wait, in seconds.

    Returns:
        The local files, and the number of steps that were recorded: fewer if training ended meanwhile.

    Raises:
        WrongStateError: the job is not running, has not reported a step, or ended before the profile was complete.
        ConflictError: another profile is being recorded.
        BackendError: the program could not record it.
        DeadlineError: there is no profile after this time.
        NotFoundError: there is no such job or replica.
        StorageWriteError: a local file cannot be written.
        UnavailableError: the service does not respond.
    """
    chosen = replica if replica is not None else _first_replica(client.job(name), name=name)
    requested = client.request_profile(name, replica=chosen, num_steps=num_steps)
    report = _wait(client, name, requested, replica=chosen, timeout_s=timeout_s)
    if report["state"] == "failed":
        kind = WrongStateError if "the program ended" in report["problem"] else BackendError
        raise kind(f"job {name} has recorded no profile: {report['problem']}")
    files: list[Path] = []
    for path in report["files"]:
        files.append(to / path.removeprefix(_OUTPUT))
        client.fetch_artifact(name, path, to=files[-1])
    return files, report["numSteps"]


def _first_replica(job: Mapping[str, Any], *, name: str) -> str:
    replicas = job.get("lockstep", {}).get("replicas", [])
    if job.get("trainingOutput", {}).get("isHyperparameterTuningJob"):
        raise WrongStateError(f"job {name} is a search, which trains nothing itself", action="name one of its trials")
    if not replicas:
        raise WrongStateError(f"job {name} is {job['state']}: only a running job can be profiled")
    trains = (replica for replica in replicas if replica["progress"] and replica["progress"]["step"] is not None)
    return str(next(trains, replicas[0])["name"])


def _wait(
    client: Client, name: str, requested: Mapping[str, Any], *, replica: str, timeout_s: float
) -> Mapping[str, Any]:
    """Returns the replica's report about a profile that is done or has failed."""
    began_s = time.monotonic()
    report: Mapping[str, Any] | None = None
    while True:
        job = ask(client, lambda service: service.job(name))
        found = next((each for each in job["lockstep"]["replicas"] if each["name"] == replica), {})
        latest: Mapping[str, Any] = found.get("profile") or {}
        waited_s = time.monotonic() - began_s
        if latest.get("id") == requested["id"]:
            report = latest
            if latest["state"] in ("done", "failed"):
                return latest
        elif job["state"] not in TERMINAL and (report is not None or waited_s > LATE_S):
            raise WrongStateError(
                f"replica {replica} of job {name} was launched again, or got another request, before the profile was "
                "complete",
                action="try again",
            )
        if job["state"] in TERMINAL:
            raise WrongStateError(f"job {name} ended before the profile was complete", received=job["state"])
        if waited_s > timeout_s:
            raise DeadlineError(_late(name, report=report, timeout_s=timeout_s))
        time.sleep(JOB_S)


def _late(name: str, *, report: Mapping[str, Any] | None, timeout_s: float) -> str:
    if report is not None and report["state"] != "requested":
        return f"the profile of job {name} was not complete within {timeout_s:.0f} s; it stays in the job's files"
    return (
        f"job {name} began no training step within {timeout_s:.0f} s, and records the next ones: it may be compiling, "
        "evaluating or waiting for data, or it does not train with Lockstep"
    )
