"""``lockstep keys create``."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.completing import complete_model, complete_version_of_model
from lockstep.cli.console import ERRORS, connect, local_time, print_line, warn_if_programs_run_as_root
from lockstep.errors import InvalidInputError, LockstepError, StorageWriteError
from lockstep.jobs.security.access import ALL_PROJECTS, MIN_REQUESTS_PER_SECOND, Scope

DAY_S: Final = 86400.0


@answers("KeyForm", hints=True)
def create(
    label: Annotated[str, typer.Argument(metavar="LABEL", help="Name of the key's owner, as jobs and events show it.")],
    scope: Annotated[
        Scope | None,
        typer.Option(
            show_default="viewer, or caller with --model",
            help="The key's permissions; each scope includes those before it.",
        ),
    ] = None,
    project: Annotated[str | None, typer.Option("--project", help="The project that the key is valid for.")] = None,
    all_projects: Annotated[bool, typer.Option("--all-projects", help="The key is valid for all projects.")] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="The key is a caller's: it can request predictions of this model, and nothing else.",
            autocompletion=complete_model,
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(help="With --model: of this version only.", autocompletion=complete_version_of_model),
    ] = None,
    requests_per_second: Annotated[
        float | None, typer.Option(min=MIN_REQUESTS_PER_SECOND, help="How many predictions it can request a second.")
    ] = None,
    valid_days: Annotated[int, typer.Option(min=1, max=3650, help="Number of days that the key is valid.")] = 90,
    never_expires: Annotated[
        bool, typer.Option("--never-expires", help="The key is valid until it is revoked.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option(help="Write the key to this new file, which only its owner can read, instead of printing it."),
    ] = None,
) -> Answer:
    """Create a key, and print it. Save it, because it cannot be shown again."""
    if (project is None) != all_projects:
        raise InvalidInputError("give either --project or --all-projects")
    scope = scope or (Scope.VIEWER if model is None else Scope.CALLER)
    if (scope is Scope.CALLER) != (model is not None) or (version is not None and model is None):
        raise InvalidInputError("--model is for keys of scope caller, which need it; --version needs --model")
    descriptor = None if output is None else _new_file(output)
    try:
        with connect() as client:
            made = client.create_key(
                label=label,
                scope=scope.value,
                project=project or ALL_PROJECTS,
                valid_s=None if never_expires else valid_days * DAY_S,
                model=model,
                version=version,
                requestsPerSecond=requests_per_second,
            )
    except BaseException:
        if descriptor is not None and output is not None:
            os.close(descriptor)
            output.unlink()
        raise
    where = "all projects" if all_projects else f"project {project}"
    if model is not None:
        where = f"model {model if version is None else f'{model}/{version}'} in {where}"
    until = "it is revoked" if made["expireTime"] is None else local_time(made["expireTime"])
    if descriptor is not None and output is not None:
        keep(made, descriptor=descriptor, path=output)
    said = f"key {made['key']} of {label}, a {scope.value} of {where}, is valid until {until}"
    shown = {name: value for name, value in made.items() if name != "secret" or descriptor is None}
    return Answer(
        show=lambda: _show(said, secret=shown.get("secret")),
        document=shown,
        hint="to try it: LOCKSTEP_TOKEN=... lockstep whoami",
    )


def _show(said: str, *, secret: str | None) -> None:
    ERRORS.print(said)
    if secret is not None:
        print_line(secret)
    # Only now, and without an error, so that the key is never lost.
    with contextlib.suppress(LockstepError), connect() as client:
        warn_if_programs_run_as_root(client.service())


def keep(made: Mapping[str, Any], *, descriptor: int, path: Path) -> None:
    """Writes a key's secret to a file, and closes the file.

    Args:
        made: the key, as the service returned it.
        descriptor: the descriptor of the open file.
        path: the path of the file, for the error message.

    Raises:
        StorageWriteError: the file cannot be written, so the key's secret is lost.
    """
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(made["secret"] + "\n")
    except OSError as error:
        raise StorageWriteError(
            f"--output: {path} cannot be written: {error.strerror}; the key is lost",
            action=f"revoke it with `lockstep keys revoke {made['key']}`",
        ) from None


def _new_file(path: Path) -> int:
    """Creates the file before the key, so that no key is created that cannot be saved."""
    try:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInputError("--output", received=str(path), allowed="a file that does not exist yet") from None
    except OSError as error:
        raise StorageWriteError(f"--output: {path} cannot be written: {error.strerror}") from None
