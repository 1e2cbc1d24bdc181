"""The fields of the form that submits a job: what each shows of a document, and what an edit of it changes.

The document is the only truth. A field shows one value of it, and what the reader types there is put into the document
at every look. A value that a field cannot show exactly, such as an argument with a line end, is not editable there: it
stays as it is until it is edited in the text. So no edit of a field can lose anything of the document.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, final

from lockstep.errors import InvalidInputError
from lockstep.service.console.job_forms.documents import Document

_MISSING: Final = object()


@final
class Kind(StrEnum):
    """How a field is edited."""

    TEXT = "text"
    NUMBER = "number"
    CHOICE = "choice"
    FLAG = "flag"
    LINES = "lines"
    """A list of texts, one a line."""
    PAIRS = "pairs"
    """Keys and values, as lines of ``key=value``."""


@final
@dataclass(frozen=True, kw_only=True)
class Field:
    """A field.

    Attributes:
        path: the keys that lead to its value in the document.
        title: what the form calls it.
        kind: how it is edited.
        hint: a sentence about it; "" for none.
        example: what stands in it while it is empty.
        choices: the name of its choices, for a field with choices.
    """

    path: tuple[str, ...]
    title: str
    kind: Kind = Kind.TEXT
    hint: str = ""
    example: str = ""
    choices: str = ""

    @property
    def name(self) -> str:
        """The name of its input, which error messages use as well."""
        return ".".join(self.path)


def shown(document: Mapping[str, Any], field: Field) -> str | None:
    """Returns the text of a field, "" for a value that is missing; None if its value can only be edited in the text."""
    value = _find(document, field.path)
    if value is None:
        return ""
    match field.kind:
        case Kind.TEXT | Kind.CHOICE:
            return value if isinstance(value, str) and _is_one_line(value) else None
        case Kind.NUMBER:
            is_whole = isinstance(value, int) and not isinstance(value, bool)
            return str(value) if is_whole else value if isinstance(value, str) and _is_one_line(value) else None
        case Kind.FLAG:
            return None if not isinstance(value, bool) else "on" if value else ""
        case Kind.LINES:
            is_text = isinstance(value, list) and all(isinstance(each, str) and _is_line(each) for each in value)
            return "\n".join(value) if is_text else None
        case Kind.PAIRS:
            is_text = isinstance(value, dict) and all(_is_pair(key, text) for key, text in value.items())
            return "\n".join(f"{key}={text}" for key, text in value.items()) if is_text else None


def with_edits(document: Mapping[str, Any], fields: Sequence[Field], *, given: Mapping[str, str]) -> Document:
    """Returns a document in which the fields that differ from it have what was given.

    Args:
        document: the document that the fields showed.
        fields: the fields of the form.
        given: the text of each field, by its name. A flag that is not set is not in it.

    Raises:
        InvalidInputError: If a text cannot be put into the document; the message begins with the field's name.
    """
    edited: Document = dict(document)
    for field in fields:
        text = given.get(field.name, "" if field.kind is Kind.FLAG else None)
        before = shown(document, field)
        if text is not None and before is not None and _cleaned(field, text) != _cleaned(field, before):
            edited = with_value(edited, field.path, _value(field, text))
    return edited


def with_value(document: Mapping[str, Any], path: Sequence[str], value: Any) -> Document:
    """Returns a document with another value.

    Args:
        document: the document.
        path: the keys that lead to the value.
        value: the value; None to remove it, and what it leaves empty, except for the document's own entries.
    """
    first, *rest = path
    changed: Document = dict(document)
    if rest:
        inner = changed.get(first)
        changed[first] = _with_inner(inner if isinstance(inner, dict) else {}, rest, value)
    elif value is None:
        changed.pop(first, None)
    else:
        changed[first] = value
    return changed


def named_field(message: str, names: Sequence[str]) -> str | None:
    """Returns the field that an error message is about; None if about none of them.

    Args:
        message: the message, such as ``trainingInput.masterType is missing``.
        names: the names of the fields. The longest one that the message's first part contains counts.
    """
    what = message.partition("; ")[0].replace("[", ".").replace("]", "")
    found = [name for name in names if _has_word(what, name)]
    return max(found, key=len, default=None)


def _with_inner(document: Mapping[str, Any], path: Sequence[str], value: Any) -> Document:
    changed = with_value(document, path, value)
    if len(path) > 1 and not changed[path[0]]:
        del changed[path[0]]
    return changed


def _cleaned(field: Field, text: str) -> str:
    """Returns a text without what its field does not distinguish."""
    return text.strip("\n") if field.kind in (Kind.LINES, Kind.PAIRS) else text.strip()


def _value(field: Field, text: str) -> Any:
    """Returns what a field's text means; None to leave the field out of the document."""
    text = _cleaned(field, text)
    if not text:
        return None
    if field.kind is Kind.NUMBER:
        is_number = text.removeprefix("-").isdecimal() and text.isascii() and len(text) < 20
        return int(text) if is_number else text
    if field.kind is Kind.FLAG:
        return True
    if field.kind is Kind.LINES:
        return [line for line in text.split("\n") if line]
    return dict(_pairs(text, name=field.name)) if field.kind is Kind.PAIRS else text


def _pairs(text: str, *, name: str) -> Iterator[tuple[str, str]]:
    seen: set[str] = set()
    for line in text.split("\n"):
        if not line.strip():
            continue
        key, sign, value = line.partition("=")
        key = key.strip()
        if not sign or not key:
            raise InvalidInputError(name, received=line, allowed="one key=value a line")
        if key in seen:
            raise InvalidInputError(name, received=f"{key} twice", allowed="each key once")
        seen.add(key)
        yield key, value


def _find(document: Mapping[str, Any], path: Sequence[str]) -> Any:
    """Returns a value; None if it is missing; `_MISSING` if something else stands in its place."""
    value: Any = document
    for key in path:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            return _MISSING
        value = value.get(key)
    return value


def _is_one_line(text: str) -> bool:
    return text.isprintable() and text == text.strip()


def _is_line(text: str) -> bool:
    return bool(text) and "\n" not in text and "\r" not in text and text == text.strip("\n")


def _is_pair(key: object, text: object) -> bool:
    return (
        isinstance(key, str)
        and isinstance(text, str)
        and bool(key)
        and "=" not in key
        and key == key.strip()
        and not set("\r\n") & {*key, *text}
    )


def _has_word(text: str, name: str) -> bool:
    start = text.find(name)
    while start >= 0:
        end = start + len(name)
        before, after = text[start - 1 : start], text[end : end + 1]
        if not (before.isalnum() or before in ("_", ".")) and not (after.isalnum() or after == "_"):
            return True
        start = text.find(name, start + 1)
    return False
