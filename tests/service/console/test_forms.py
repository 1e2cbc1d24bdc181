"""Forms as browsers send them, and as nobody should."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from starlette.requests import Request

from lockstep.errors import BodyTooLargeError, InvalidInputError
from lockstep.service.console.forms import MAX_FIELDS, MAX_FILE_BYTES, MAX_FORM_BYTES, Form, read_form

MULTIPART = 'multipart/form-data; boundary="----b"'
URLENCODED = "application/x-www-form-urlencoded"


def read(body: bytes, *, content_type: str, takes_files: bool = True) -> Form:
    chunks = iter([body[place : place + 2**20] for place in range(0, len(body), 2**20)])

    class Sent(Request):
        async def stream(self) -> AsyncIterator[bytes]:  # pyright: ignore[reportIncompatibleMethodOverride]
            for chunk in chunks:
                yield chunk

    scope = {"type": "http", "headers": [(b"content-type", content_type.encode())]}
    return asyncio.run(read_form(Sent(scope), takes_files=takes_files))


def part(head: str, content: bytes) -> bytes:
    return b"------b\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def test_fields_and_files_are_told_apart_and_bytes_are_kept() -> None:
    content = b"\r\n--\x00\xff\r\n\r\n----b\n"
    body = b"".join(
        [
            part('name="text"', "grün\r\nblau".encode()),
            part('name="file"; filename="a b.png"\r\nContent-Type: image/png', content),
            part('name="none"; filename=""', b""),
            b"------b--\r\n",
        ]
    )
    form = read(body, content_type=MULTIPART)
    assert form.fields["text"] == "grün\nblau"
    assert {name: (file.name, file.data) for name, file in form.files.items()} == {"file": ("a b.png", content)}
    assert read(b"a=1&b=", content_type=URLENCODED).fields == {"a": "1", "b": ""}
    with pytest.raises(InvalidInputError, match="takes no files"):
        read(body, content_type=MULTIPART, takes_files=False)


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"------b\r\nX: y\r\n\r\n\r\n------b--", MULTIPART, "cannot be read"),
        (part('name="a"', b"x") * (MAX_FIELDS + 1) + b"------b--", MULTIPART, "cannot be read"),
        (b"x", "multipart/form-data", "cannot be read"),
        (part('name="a"', b"\0") + b"------b--", MULTIPART, "NUL"),
        (b"a=%00", URLENCODED, "NUL"),
        (b"a%00=1", URLENCODED, "NUL"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        read(body, content_type=content_type)


def test_forms_and_files_have_bounds() -> None:
    with pytest.raises(BodyTooLargeError, match="the form is too large"):
        read(b"a=" + b"x" * MAX_FORM_BYTES, content_type=URLENCODED)
    large = part('name="file"; filename="a"', b"x" * (MAX_FILE_BYTES + MAX_FORM_BYTES)) + b"------b--"
    with pytest.raises(BodyTooLargeError, match="the file is too large"):
        read(large, content_type=MULTIPART)
