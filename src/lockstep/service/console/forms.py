"""Reads the forms that a browser sends, each within bounds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, field
from typing import Final, final
from urllib.parse import parse_qsl

from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from lockstep.errors import BodyTooLargeError, InvalidInputError
from lockstep.service.api.requests import BODY_TIMEOUT_S

MAX_FORM_BYTES: Final = 2**20
"""The maximum length of a form without a file."""
MAX_FILE_BYTES: Final = 32 * 2**20
"""The maximum length of a file in a form."""
MAX_FIELDS: Final = 500
UPLOAD_TIMEOUT_S: Final = 600.0
"""How long a browser may take to send a form with a file, in seconds."""
MULTIPART: Final = "multipart/form-data"


@final
@dataclass(frozen=True, kw_only=True)
class SentFile:
    """A file of a form.

    Attributes:
        name: its name on the machine of the browser, which may be anything.
        data: its content.
    """

    name: str
    data: bytes = field(repr=False)


@final
@dataclass(frozen=True, kw_only=True)
class Form:
    """What a form contains.

    Attributes:
        fields: the text of each field, with line ends as on Unix.
        files: the files that were chosen, by field.
    """

    fields: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, SentFile] = field(default_factory=dict[str, SentFile])


def form_of(request: Request) -> Form:
    """Returns the form of a request that changes something, which the console has read before its page is made."""
    return request.state.form


async def read_form(request: Request, *, takes_files: bool = False) -> Form:
    """Returns the content of a form.

    Args:
        request: the request of the browser.
        takes_files: whether the form may contain a file.

    Raises:
        BodyTooLargeError: If the form is larger than `MAX_FORM_BYTES`, or its file than `MAX_FILE_BYTES`.
        InvalidInputError: If it is not a form, does not arrive in time, or contains NUL.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != MULTIPART:
        return await _read_fields(request)
    if not takes_files:
        raise InvalidInputError("this form takes no files", received=MULTIPART)
    return await _read_with_files(request)


async def _read_fields(request: Request) -> Form:
    content = b""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            async for chunk in _bounded(request, max_bytes=MAX_FORM_BYTES, what="the form is too large"):
                content += chunk
    except TimeoutError:
        raise InvalidInputError(f"the form did not arrive within {BODY_TIMEOUT_S:.0f} s") from None
    given = parse_qsl(content.decode(errors="replace"), keep_blank_values=True)
    return Form(fields=_checked({name: _with_unix_lines(text) for name, text in given}))


async def _read_with_files(request: Request) -> Form:
    stream = _bounded(request, max_bytes=MAX_FILE_BYTES + MAX_FORM_BYTES, what="the file is too large")
    parser = MultiPartParser(request.headers, stream, max_files=4, max_fields=MAX_FIELDS, max_part_size=MAX_FORM_BYTES)
    try:
        async with asyncio.timeout(UPLOAD_TIMEOUT_S):
            content = await parser.parse()
            items = content.multi_items()
            texts = {name: _with_unix_lines(value) for name, value in items if isinstance(value, str)}
            sent = {
                name: SentFile(name=value.filename, data=await value.read())
                for name, value in items
                if isinstance(value, UploadFile) and value.filename
            }
            await content.close()
    except TimeoutError:
        raise InvalidInputError(f"the file did not arrive within {UPLOAD_TIMEOUT_S:.0f} s") from None
    except (MultiPartException, FormParserError) as error:  # the second, before Starlette 1.10
        raise InvalidInputError(f"the form cannot be read: {error}") from None
    return Form(fields=_checked(texts), files=sent)


async def _bounded(request: Request, *, max_bytes: int, what: str) -> AsyncGenerator[bytes, None]:
    num_bytes = 0
    async for chunk in request.stream():
        num_bytes += len(chunk)
        if num_bytes > max_bytes:
            raise BodyTooLargeError(what, allowed=f"{max_bytes} bytes at most")
        yield chunk


def _with_unix_lines(text: str) -> str:
    """Returns a text with the line ends that it had before the browser sent it."""
    return text.replace("\r\n", "\n")


def _checked(fields: Mapping[str, str]) -> Mapping[str, str]:
    """Returns the fields of a form, if they contain no NUL, which databases do not accept."""
    if any("\0" in name + text for name, text in fields.items()):
        raise InvalidInputError("the form contains the character NUL", action="remove it")
    return fields
