"""``lockstep predict``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.console import DEFAULT_PROJECT, ProjectOption, connect, print_json
from lockstep.errors import InvalidInputError, MissingInputError


def predict(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="The model's name.")],
    instances: Annotated[
        Path, typer.Option("--json-request", help='File with {"instances": [...]}; - reads standard input.')
    ],
    version: Annotated[
        str | None, typer.Option(help="The version to use. Default: the model's default version.")
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Request predictions from a deployed model, and print them as {"predictions": [...]}."""
    with connect(project) as client:
        answer = client.predict(model, _instances(instances), version=version)
    print_json({"predictions": answer})


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _instances(path: Path) -> list[Any]:
    try:
        data = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
    except OSError as error:
        raise MissingInputError(f"--json-request: {path} cannot be read: {error.strerror}") from None
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # also if the bytes are not text
        raise InvalidInputError(f"--json-request: {path} is not JSON: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("instances"), list):
        raise InvalidInputError(f"--json-request: {path}", allowed='{"instances": [...]}')
    return document["instances"]
