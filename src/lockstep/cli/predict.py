"""``lockstep predict``."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lockstep.cli.completing import complete_version_of_model
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, ModelArgument, ProjectOption, connect, print_json
from lockstep.errors import InvalidInputError, MissingInputError

STANDARD_INPUT: Final = "-"


def predict(
    model: ModelArgument,
    request: Annotated[
        Path | None,
        typer.Option("--json-request", metavar="FILE", help='File with {"instances": [...]}; - reads standard input.'),
    ] = None,
    instances: Annotated[
        Path | None,
        typer.Option(
            "--json-instances", metavar="FILE", help="File with one instance a line, in JSON; - reads standard input."
        ),
    ] = None,
    images: Annotated[
        list[Path] | None,
        typer.Option(
            "--image",
            metavar="FILE",
            help="JPEG or PNG file, as one instance; - reads standard input; may be repeated.",
        ),
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="The version to use. Default: those that have traffic.", autocompletion=complete_version_of_model
        ),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Request predictions from a deployed model, and print them as {"predictions": [...]}.

    Standard error says which version has answered.
    """
    found = _read_body(request=request, lines=instances, images=images or ())
    with connect(project) as client:
        answer, answered_by = client.predict_by(model, found.pop("instances"), version=version, parameters=found)
    if answered_by is not None:
        ERRORS.print(f"-- answered by version {answered_by}", style="dim")
    print_json({"predictions": answer})


def _read_body(*, request: Path | None, lines: Path | None, images: Sequence[Path]) -> dict[str, Any]:
    given = [
        flag for flag, value in (("--json-request", request), ("--json-instances", lines), ("--image", images)) if value
    ]
    if len(given) != 1:
        raise InvalidInputError(
            "give the instances in one way",
            received=" and ".join(given) or None,
            allowed="one of --json-request, --json-instances, --image",
        )
    if request is not None:
        return _read_request(request)
    if lines is not None:
        return {"instances": _read_lines(lines)}
    encoded = [base64.b64encode(_read(path, flag="--image")).decode("ascii") for path in images]
    return {"instances": [{"b64": text} for text in encoded]}


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


def _shown(path: Path) -> str:
    return "standard input" if str(path) == STANDARD_INPUT else str(path)


def _read(path: Path, *, flag: str) -> bytes:
    try:
        return sys.stdin.buffer.read() if str(path) == STANDARD_INPUT else path.read_bytes()
    except OSError as error:
        raise MissingInputError(f"{flag}: {_shown(path)} cannot be read: {error.strerror}") from None


def _read_request(path: Path) -> dict[str, Any]:
    data = _read(path, flag="--json-request")
    try:
        document = json.loads(data, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:  # also if the bytes are not text
        raise InvalidInputError(
            f"--json-request: {_shown(path)} is not JSON: {error}",
            action="for a file with one instance a line, use --json-instances",
        ) from None
    if not isinstance(document, dict) or not isinstance(document.get("instances"), list):
        raise InvalidInputError(f"--json-request: {_shown(path)}", allowed='{"instances": [...]}')
    return document


def _read_lines(path: Path) -> list[Any]:
    found: list[Any] = []
    for number, line in enumerate(_read(path, flag="--json-instances").split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            found.append(json.loads(line, parse_constant=_refuse_constant))
        except (ValueError, RecursionError) as error:
            raise InvalidInputError(f"--json-instances: {_shown(path)}, line {number} is not JSON: {error}") from None
    if not found:
        raise InvalidInputError(f"--json-instances: {_shown(path)} is empty", allowed="one instance a line")
    return found
