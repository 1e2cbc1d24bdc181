"""``lockstep update``: changes the labels of a job, as ``gcloud ai-platform jobs update`` does."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, JobArgument, ProjectOption, connect
from lockstep.cli.job_flags import read_pairs
from lockstep.errors import ConflictError, InvalidInputError

if TYPE_CHECKING:
    from lockstep.client import Client

NUM_ATTEMPTS: Final = 10


@answers("JobForm")
def update(
    job: JobArgument,
    update_labels: Annotated[str | None, typer.Option(help="Set these labels: key=value,key=value.")] = None,
    remove_labels: Annotated[str | None, typer.Option(help="Remove these labels: key,key.")] = None,
    clear_labels: Annotated[bool, typer.Option("--clear-labels", help="Remove all labels first.")] = False,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Change a job's labels."""
    if update_labels is None and remove_labels is None and not clear_labels:
        raise InvalidInputError("update needs --update-labels, --remove-labels or --clear-labels")
    if clear_labels and remove_labels is not None:
        raise InvalidInputError("--clear-labels removes all labels; omit --remove-labels")
    added = {} if update_labels is None else read_pairs(update_labels, flag="--update-labels")
    removed = [key.strip() for key in (remove_labels or "").split(",") if key.strip()]
    with connect(project) as client:
        changed = change_labels(client, job, added=added, removed=removed, clear=clear_labels)
    labels = ", ".join(f"{key}={value}" for key, value in sorted(changed.get("labels", {}).items()))
    return Answer(show=lambda: OUTPUT.print(f"job {job}: {labels or 'no labels'}"), document=changed)


def change_labels(
    client: Client, job: str, *, added: Mapping[str, str], removed: Sequence[str], clear: bool
) -> dict[str, Any]:
    """Changes a job's labels, and keeps concurrent changes: if the job has changed, it is read again.

    Args:
        client: the client of the service.
        job: the job's name.
        added: the labels to set.
        removed: the keys to remove; a missing key is not an error.
        clear: whether to remove all other labels.

    Returns:
        The job.

    Raises:
        ConflictError: the job changed between reading and writing in each of `NUM_ATTEMPTS` attempts.
    """
    for _ in range(NUM_ATTEMPTS - 1):
        with contextlib.suppress(ConflictError):
            return _change_once(client, job, added=added, removed=removed, clear=clear)
    return _change_once(client, job, added=added, removed=removed, clear=clear)


def _change_once(
    client: Client, job: str, *, added: Mapping[str, str], removed: Sequence[str], clear: bool
) -> dict[str, Any]:
    found = client.job(job)
    kept = {} if clear else {key: value for key, value in found.get("labels", {}).items() if key not in removed}
    return client.update_labels(job, labels={**kept, **added}, etag=found["etag"])
