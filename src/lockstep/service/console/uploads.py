"""Reads the forms of browsers, those with files among them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, final
from urllib.parse import parse_qsl

from starlette.requests import Request

from lockstep.errors import BodyTooLargeError, InvalidInputError
from lockstep.service.api.requests import BODY_TIMEOUT_S

MAX_UPLOAD_BYTES: Final = 8 * 2**20
"""The maximum size of a form with a file, in bytes."""
MAX_PARTS: Final = 50
_MULTIPART: Final = re.compile(r"multipart/form-data\s*;.*?\bboundary=\"?([^\";,\s]{1,70})\"?", re.IGNORECASE)
_PARAMETER: Final = re.compile(rb'[;\s](name|filename)="((?:[^"\r\n]){0,500})"')


@final
@dataclass(frozen=True, kw_only=True)
class File:
    """A file of a form.

    Attributes:
        name: its name, as the browser says it.
        content: its content.
    """

    name: str
    content: bytes = field(repr=False)


@final
@dataclass(frozen=True, kw_only=True)
class Form:
    """The fields and files of a form. Of several with one name, the last one counts.

    Attributes:
        fields: the fields by name.
        files: the files by name, without those that were not chosen.
    """

    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, File] = field(default_factory=dict[str, File])


async def read_upload(request: Request) -> Form:
    """Returns the fields and files of a form, in either of the two encodings that browsers use.

    Raises:
        BodyTooLargeError: If it is larger than `MAX_UPLOAD_BYTES`.
        InvalidInputError: If it does not arrive within `BODY_TIMEOUT_S`, is not a form, or contains NUL.
    """
    chunks: list[bytes] = []
    num_bytes = 0
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in request.stream():
                chunks.append(chunk)
                num_bytes += len(chunk)
                if num_bytes > MAX_UPLOAD_BYTES:
                    raise BodyTooLargeError("the form is too large", allowed=f"{MAX_UPLOAD_BYTES} bytes")
    except TimeoutError:
        raise InvalidInputError(f"the form did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    return parse_form(b"".join(chunks), content_type=request.headers.get("content-type", ""))


def parse_form(body: bytes, *, content_type: str) -> Form:
    """Parses a form (RFC 7578 for ``multipart/form-data``).

    Args:
        body: the body of the request.
        content_type: its ``Content-Type``.

    Raises:
        InvalidInputError: If the body is not a form, or has too many parts.
    """
    found = _MULTIPART.match(content_type)
    if found is None:
        text = body.decode(errors="replace")
        try:
            fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=MAX_PARTS))
        except ValueError:
            raise InvalidInputError("the form has too many fields", allowed=f"{MAX_PARTS}") from None
        return Form(fields=check_texts(fields))
    parts = (b"\r\n" + body).split(b"\r\n--" + found[1].encode(), MAX_PARTS + 2)
    if len(parts) > MAX_PARTS + 2:
        raise InvalidInputError("the form has too many parts", allowed=f"{MAX_PARTS}")
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        raise InvalidInputError("the form is cut off", action="send it again")
    fields: dict[str, str] = {}
    files: dict[str, File] = {}
    for part in parts[1:-1]:
        head, separator, content = part.partition(b"\r\n\r\n")
        names = dict(_PARAMETER.findall(head))
        if not separator or b"name" not in names:
            raise InvalidInputError("the form has a part without a name")
        name = names[b"name"].decode(errors="replace")
        if b"filename" not in names:
            fields[name] = content.decode(errors="replace")
        elif content:
            files[name] = File(name=names[b"filename"].decode(errors="replace"), content=content)
    return Form(fields=check_texts(fields), files=files)


def check_texts(fields: Mapping[str, str]) -> dict[str, str]:
    """Returns the fields of a form.

    Raises:
        InvalidInputError: If one contains NUL, which databases do not accept.
    """
    for name, text in fields.items():
        if "\0" in name + text:
            raise InvalidInputError("the form contains the character NUL", action="remove it")
    return dict(fields)
