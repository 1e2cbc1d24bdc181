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

_NAME: Final = re.compile(r"[0-9A-Za-z_]{1,128}")

Position = tuple[float, str]
"""The position of a record in its list: its time of creation, and a name or uid that distinguishes equal times."""


class AbstractRead(Protocol[Record_co]):
    """A function that reads a list of records in parts."""

    def __call__(self, *, size: int, before: Position | None) -> Sequence[Record_co]:
        """Returns up to `size` records after a position, the newest first."""
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

    Raises:
        InvalidInputError: If the token is not one of this service's.
    """
    size = min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    before = _decode(token)
    found: list[Record] = []
    num_scanned = size + 1  # one more record shows whether there is another page
    while len(found) <= size:
        scanned = read(size=num_scanned, before=before)
        found += scanned if holds is None else [record for record in scanned if holds(record)]
        if len(scanned) < num_scanned:
            break
        before = position(scanned[-1])
        num_scanned = min(2 * num_scanned, SCAN_SIZE)
    more = {"nextPageToken": _encode(position(found[size - 1]))} if len(found) > size else {}
    return {name: show(found[:size]), **more}


def _encode(position: Position) -> str:
    return base64.urlsafe_b64encode(json.dumps(position).encode()).decode()


def _decode(token: str) -> Position | None:
    if not token:
        return None
    try:
        time_s, name = json.loads(base64.urlsafe_b64decode(token.encode()))
        if not _NAME.fullmatch(name):
            raise ValueError(name)
        return float(time_s), name
    except (ValueError, TypeError, OverflowError, RecursionError):
        raise InvalidInputError("pageToken was not issued by this service", received=token) from None


Filter = Annotated[str, Query(alias="filter")]
PageSize = Annotated[int, Query(alias="pageSize", ge=0)]
PageToken = Annotated[str, Query(alias="pageToken")]
