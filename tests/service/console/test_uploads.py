"""Forms as browsers send them, and as nobody should."""

from __future__ import annotations

import pytest

from lockstep.errors import InvalidInputError
from lockstep.service.console.uploads import MAX_PARTS, parse_form

TYPE = 'multipart/form-data; boundary="----b"'


def _part(head: str, content: bytes) -> bytes:
    return b"------b\r\nContent-Disposition: form-data; " + head.encode() + b"\r\n\r\n" + content + b"\r\n"


def test_fields_and_files_are_told_apart_and_bytes_are_kept() -> None:
    content = b"\r\n--\x00\xff\r\n\r\n----b\n"
    body = b"".join(
        [
            _part('name="text"', "grün".encode()),
            _part('name="file"; filename="a b.png"\r\nContent-Type: image/png', content),
            _part('name="none"; filename=""', b""),
            b"------b--\r\n",
        ]
    )
    form = parse_form(body, content_type=TYPE)
    assert form.fields == {"text": "grün"}
    assert {name: (file.name, file.content) for name, file in form.files.items()} == {"file": ("a b.png", content)}
    assert parse_form(b"a=1&b=", content_type="application/x-www-form-urlencoded").fields == {"a": "1", "b": ""}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (_part('name="a"', b"x"), "cut off"),
        (b"", "cut off"),
        (b"------b\r\nX: y\r\n\r\n\r\n------b--", "without a name"),
        (b"------b\r\n------b--", "without a name"),
        (_part('name="a"', b"\0") + b"------b--", "NUL"),
        (_part('name="a"', b"x") * (MAX_PARTS + 1) + b"------b--", "too many parts"),
    ],
)
def test_what_is_no_form_is_refused(body: bytes, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        parse_form(body, content_type=TYPE)


def test_a_form_of_too_many_fields_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="too many fields"):
        parse_form(b"&".join([b"a=1"] * (MAX_PARTS + 1)), content_type="")
