"""What routes read from a request: the service's parts, the project, the body, times."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

from fastapi import Depends, Path, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from lockstep.errors import BodyTooLargeError, ConfigError, InvalidInputError, MediaTypeError, NotFoundError
from lockstep.service.context import ServiceContext
from lockstep.service.security.locations import STAGING_FOLDER
from lockstep.tensors import BINARY_TYPE

MAX_JSON_BYTES: Final = 1024 * 1024
"""The maximum length of a body, except in requests for predictions."""
MAX_INSTANCES_BYTES: Final = 32 * 1024 * 1024
"""The maximum length of the body of a request for predictions."""
BODY_TIMEOUT_S: Final = 60.0
"""How long a client may take to send a body."""

NAME: Final = r"^[a-zA-Z][a-zA-Z0-9_]{0,127}$"
"""The form of the names of jobs, models and versions."""
_PROJECT: Final = r"[a-z][a-z0-9-]{0,62}"


class AbstractRequest(BaseModel):
    """The base of the models of request bodies: keys are camelCase, and unknown keys are rejected."""

    model_config = ConfigDict(alias_generator=to_camel, extra="forbid", frozen=True)


Document = TypeVar("Document", bound=AbstractRequest)


def parse_request(kind: type[Document], body: dict[str, Any]) -> Document:
    """Validates a body.

    Args:
        kind: the model of the body.
        body: the parsed JSON.

    Raises:
        ConfigError: If the body does not match the model; the message names the first field that does not.
    """
    try:
        return kind.model_validate(body)
    except ValidationError as error:
        first = error.errors()[0]
        path = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            allowed = [field.alias or name for name, field in kind.model_fields.items()]
            raise ConfigError(f"{path}: not supported by this version", allowed=allowed) from None
        received = None if first["type"] == "missing" else first["input"]
        raise ConfigError(f"{path}: {first['msg']}", received=received) from None


async def _context(request: Request) -> ServiceContext:
    # A coroutine, because FastAPI passes plain functions to a thread.
    return request.app.state.context


def check_media_type(given: str | None, *, allows_binary: bool = False) -> None:
    """Checks a request's ``Content-Type``. Without one, the body is assumed to be of an allowed type.

    Args:
        given: the header; None if there is none.
        allows_binary: whether the body may be binary.

    Raises:
        MediaTypeError: If the type is not JSON, and not an allowed binary one.
    """
    kind = (given or "").partition(";")[0].strip().lower()
    if not kind or kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    if not allows_binary:
        raise MediaTypeError("the request's Content-Type", received=kind, allowed="application/json")
    if kind != BINARY_TYPE:
        raise MediaTypeError("the request's Content-Type", received=kind, allowed=("application/json", BINARY_TYPE))


async def read_body(request: Request, *, max_bytes: int, allows_binary: bool = False) -> bytes:
    """Returns a request's body.

    Raises:
        BodyTooLargeError: If the body is longer than `max_bytes`.
        MediaTypeError: If its ``Content-Type`` is not allowed; see `check_media_type`.
        InvalidInputError: If it does not arrive within `BODY_TIMEOUT_S`.
    """
    check_media_type(request.headers.get("content-type"), allows_binary=allows_binary)
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                chunks.append(chunk)
                num_bytes += len(chunk)
                if num_bytes > max_bytes:
                    raise BodyTooLargeError("the request's body is too large", allowed=f"{max_bytes} bytes at most")
    except TimeoutError:
        raise InvalidInputError(f"the request's body did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    return b"".join(chunks)


def _reject_constant(text: str) -> None:
    """Rejects NaN and infinities, which Python's parser accepts but JSON does not have."""
    raise ValueError(f"{text} is not a JSON number")


def check_texts(document: object) -> None:
    """Rejects strings that could be stored but never sent back, or that a database does not accept.

    Args:
        document: what a JSON parser returned.

    Raises:
        ValueError: If it has a lone surrogate or a NUL.
    """
    text = json.dumps(document, ensure_ascii=False)
    text.encode()  # raises a ValueError for a lone surrogate
    if "\\u0000" in text.replace("\\\\", ""):
        raise ValueError("strings must not contain NUL")


async def _json_object(request: Request) -> dict[str, Any]:
    body = await read_body(request, max_bytes=MAX_JSON_BYTES)
    try:
        # json.loads would also accept bytes in UTF-16 or UTF-32, and encoded lone surrogates.
        text = (body or b"{}").decode("utf-8-sig")
        document = json.loads(text, parse_constant=_reject_constant)
        if "\\u" in text:  # strict UTF-8 has no lone surrogates, and JSON no NUL, except as escapes
            check_texts(document)
    except (ValueError, RecursionError) as error:
        raise InvalidInputError(f"the request's body is not JSON: {error}") from None
    if not isinstance(document, dict):
        raise InvalidInputError("the request's body", received=document, allowed="a JSON object")
    return document


def check_project(project: str) -> None:
    """Checks a project that was not read by `Project`, which a route does.

    Raises:
        NotFoundError: If no project can have this name.
    """
    if re.fullmatch(_PROJECT, project) is None or project == STAGING_FOLDER:
        raise NotFoundError(f"no project {project!r}", action="check its name")


def _own_folder(project: str) -> str:
    if project == STAGING_FOLDER:
        raise ValueError("the bucket's folder of this name is for code")
    return project


def read_time(text: str, *, what: str) -> float | None:
    """Parses a time in a request. Without a time zone, it is in UTC.

    Returns:
        The time, in seconds since 1970 UTC; None if the text is empty.

    Raises:
        InvalidInputError: If the text is not a time.
    """
    if not text:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInputError(what, received=text, allowed="a day or a time, such as 2026-11-22T14:00:00Z") from None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


Context = Annotated[ServiceContext, Depends(_context)]
Body = Annotated[dict[str, Any], Depends(_json_object)]
Project = Annotated[str, Path(pattern=f"^{_PROJECT}$"), AfterValidator(_own_folder)]
KeyProject = Annotated[str, StringConstraints(pattern=rf"^({_PROJECT}|\*)$"), AfterValidator(_own_folder)]
"""A project, or `ALL_PROJECTS`."""
Name = Annotated[str, Path(pattern=NAME)]
JobName = Annotated[str, Path(pattern=NAME.removesuffix("$") + r"(\.[1-9][0-9]{0,4})?$")]
"""The name of a job that is read: of one that somebody submitted, or of a trial, such as ``digits.3``."""
