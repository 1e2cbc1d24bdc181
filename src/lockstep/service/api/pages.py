"""Lists in pages: records that a filter holds for, the newest first, and where the next page begins."""

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
"""How many records are read at once, at the most, where a filter chooses among them."""

Record = TypeVar("Record")
Record_co = TypeVar("Record_co", covariant=True)

_NAME: Final = re.compile(r"[0-9A-Za-z_]{1,128}")

Position = tuple[float, str]
"""Where a record stands in its list: its time of creation, and what tells it from others of that time."""


class AbstractRead(Protocol[Record_co]):
    """Reads a list of records in parts."""

    def __call__(self, *, size: int, before: Position | None) -> Sequence[Record_co]:
        """Returns so many records after a position, the newest first."""
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
    """Returns the answer to a list request: a page of what a filter holds for.

    Args:
        name: what the resources are called in the answer.
        read: reads the list.
        holds: the filter; None for one that holds for everything.
        position: a record's position.
        show: returns the records' resources.
        size: how many records were asked for; 0 leaves it to the service.
        token: the one of the page before; empty for the first page.

    Raises:
        InvalidInputError: the token is none of this service's.
    """
    size = min(size or DEFAULT_PAGE_SIZE, MAX_PAGE_SIZE)
    before = _decode(token)
    found: list[Record] = []
    num_scanned = size + 1  # one more says whether there is another page
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
        raise InvalidInputError("pageToken is not one that this service gave", received=token) from None


Filter = Annotated[str, Query(alias="filter")]
PageSize = Annotated[int, Query(alias="pageSize", ge=0)]
PageToken = Annotated[str, Query(alias="pageToken")]
