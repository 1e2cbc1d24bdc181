"""Responses to list requests: pages of the records that match a filter, the newest first, with page tokens."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Final, Protocol, TypeVar

from fastapi import Query

from lockstep.errors import InvalidInputError

DEFAULT_PAGE_SIZE: Final = 20
MAX_PAGE_SIZE: Final = 100
SCAN_SIZE: Final = 2000
"""The maximum number of records that are read at once for a filter."""

Record = TypeVar("Record")
Record_co = TypeVar("Record_co", covariant=True)

_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")

Position = tuple[Any, str]
"""The position of a record in its list: its time of creation, and a name or uid that distinguishes equal times.

In another order than the newest first, what the list is ordered by is in the place of the time.
"""


class AbstractRead(Protocol[Record_co]):
    """A function that reads a list of records in parts."""

    def __call__(self, *, size: int, before: Position | None) -> Sequence[Record_co]:
        """Returns up to `size` records after a position, in the order of the list."""
        ...


def list_answer(
    name: str,
    *,
    read: AbstractRead[Record],
    holds: Callable[[Record], bool] | None,
    position: Callable[[Record], Position],
    show: Callable[[Sequence[Record]], Sequence[Mapping[str, Any]]],
    size: int,
    token: str,
    order: str = "",
    is_text: bool = False,
) -> Any:
    """Returns the response to a list request: a page of the records that match a filter.

    Args:
        name: the name of the resources in the response.
        read: reads the list.
        holds: the filter; None if it matches everything.
        position: returns the position of a record.
        show: returns the resources of records.
        size: the requested number of records; 0 for the default.
        token: the page token from the previous page; empty for the first page.
        order: the order of the list, if it has several. A page token is for one of them.
        is_text: whether the list is ordered by text, so that a position has text in the place of the time.

    Raises:
        InvalidInputError: If the token is not one of this service's, or of another order.
    """
    size = min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    before = _decode(token, order=order, is_text=is_text)
    found: list[Record] = []
    num_scanned = size + 1  # one more record shows whether there is another page
    while len(found) <= size:
        scanned = read(size=num_scanned, before=before)
        found += scanned if holds is None else [record for record in scanned if holds(record)]
        if len(scanned) < num_scanned:
            break
        before = position(scanned[-1])
        num_scanned = min(2 * num_scanned, SCAN_SIZE)
    more = {"nextPageToken": _encode(position(found[size - 1]), order=order)} if len(found) > size else {}
    return {name: show(found[:size]), **more}


def _encode(position: Position, *, order: str) -> str:
    return base64.urlsafe_b64encode(json.dumps([*position, *([order] if order else [])]).encode()).decode()


def _decode(token: str, *, order: str, is_text: bool) -> Position | None:
    if not token:
        return None
    try:
        key, name, *others = json.loads(base64.urlsafe_b64decode(token.encode()))
        if not _NAME.fullmatch(name) or others != ([order] if order else []):
            raise ValueError(name)
        if isinstance(key, str) != is_text:
            raise ValueError(key)
        return (key if is_text else float(key)), name
    except (ValueError, TypeError, OverflowError, RecursionError):
        allowed = "the nextPageToken of a list in the same order" if order else None
        raise InvalidInputError("pageToken was not issued by this service", received=token, allowed=allowed) from None


Filter = Annotated[str, Query(alias="filter")]
PageSize = Annotated[int, Query(alias="pageSize", ge=0)]
PageToken = Annotated[str, Query(alias="pageToken")]
