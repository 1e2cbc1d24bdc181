"""``lockstep secrets set``."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.completing import complete_secret
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, ProjectOption, connect
from lockstep.errors import InvalidInputError, MissingInputError

SecretArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="The secret's name.", autocompletion=complete_secret)
]


@answers("SecretNameForm", hints=True)
def set_secret(
    name: SecretArgument,
    file: Annotated[
        Path | None, typer.Option(help="File with the value; without it, the standard input has it.")
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Create or replace a secret.

    Jobs that start from now on receive the value. One line feed at the end of the value is removed.
    """
    value = _read(file)
    with connect(project) as client:
        client.set_secret(name, value=value)
    return Answer(
        show=lambda: ERRORS.print(f"secret {name} is set", style="dim"),
        document={"name": name},
        hint=f"to give it to a job: lockstep submit JOB ... --secret VARIABLE={shlex.quote(name)}",
    )


def _read(file: Path | None) -> str:
    if file is None and sys.stdin.isatty():
        return typer.prompt("value", hide_input=True, err=True)
    try:
        data = sys.stdin.buffer.read() if file is None else file.read_bytes()
        return data.decode().removesuffix("\n")
    except OSError as error:
        raise MissingInputError(f"--file: {file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise InvalidInputError("the secret's value is not UTF-8", action="encode it, for example by base64") from None
