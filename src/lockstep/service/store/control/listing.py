"""Lists of jobs in an order, a part at a time: the query that continues after the last job of the part before."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, final

from sqlalchemy import (
    JSON,
    ColumnElement,
    Float,
    Select,
    Text,
    and_,
    cast,
    func,
    literal,
    or_,
    select,
    tuple_,
    type_coerce,
)

from lockstep.jobs.lists.filters import JobBounds
from lockstep.jobs.running.states import JobState
from lockstep.service.store.database import POSTGRESQL
from lockstep.service.store.tables import JOBS

_Key = ColumnElement[Any]

_RAN_S: Final[_Key] = JOBS.c.end_time_s - JOBS.c.start_time_s
_COST_USD: Final[_Key] = cast(type_coerce(JOBS.c.bill, JSON)["cost_usd"].as_string(), Float)

ORDER_KEYS: Final[Mapping[str, _Key]] = {
    "createTime": JOBS.c.create_time_s,
    "startTime": func.coalesce(JOBS.c.start_time_s, 0.0),
    "endTime": func.coalesce(JOBS.c.end_time_s, 0.0),
    "elapsed": func.coalesce(_RAN_S, 0.0),
    "costUsd": func.coalesce(_COST_USD, 0.0),
    "numRestarts": JOBS.c.num_restarts,
    "jobId": JOBS.c.job_id,
    "state": JOBS.c.state,
    "submittedBy": JOBS.c.submitted_by,
}
"""What jobs can be ordered by. How long a job took and what it cost are 0 until it is over."""

_DOCUMENTS: Final = {"trainingInput": JOBS.c.training_input, "labels": JOBS.c.labels}
"""Fields that are stored as JSON in ASCII, with all other characters escaped."""
_ESCAPE: Final = "\\u"
_TEXT: Final = Text().with_variant(Text(collation="C"), POSTGRESQL)
"""A text type in which only ASCII letters have upper and lower case, whatever the locale of the database is."""
NEWEST_KEY: Final = "createTime"


@final
@dataclass(frozen=True, kw_only=True)
class JobOrder:
    """An order of jobs. Those with the same key are ordered by their uids.

    Attributes:
        key: one of `ORDER_KEYS`.
        is_descending: whether the largest comes first.
    """

    key: str = NEWEST_KEY
    is_descending: bool = True

    def __str__(self) -> str:
        return f"{self.key} desc" if self.is_descending else self.key

    @property
    def is_of_text(self) -> bool:
        """Whether the key is text, not a number."""
        return self.key in ("jobId", "state", "submittedBy")

    def place(self, row: Any) -> tuple[float | str, str]:
        """Returns the place of a row that `select_jobs` found: its key and its uid."""
        return row.create_time_s if self.key == NEWEST_KEY else row.order_key, row.uid


NEWEST_FIRST: Final = JobOrder()


def select_jobs(
    *conditions: ColumnElement[bool],
    columns: Collection[str],
    order: JobOrder,
    size: int,
    after: tuple[float | str, str] | None,
) -> Select[Any]:
    """Returns a query for the next jobs in an order.

    Args:
        *conditions: what the jobs must meet.
        columns: the columns, in addition to ``create_time_s``, ``uid`` and, unless the newest are first, ``order_key``.
        order: the order.
        size: the maximum number of jobs.
        after: the place of the last job before; None for the beginning.
    """
    names = sorted({"create_time_s", "uid", *columns})
    selected: list[ColumnElement[Any]] = [JOBS.c[name] for name in names]
    key, uid = ORDER_KEYS[order.key], JOBS.c.uid
    if order.key != NEWEST_KEY:
        selected.append(key.label("order_key"))
    query = select(*selected).where(*conditions)
    if after is not None:
        if order.key == NEWEST_KEY:  # as one comparison, which the index on both answers
            place = tuple_(key, uid)
            query = query.where(place < after if order.is_descending else place > after)
        else:
            value, last = literal(after[0]), after[1]
            beyond = key < value if order.is_descending else key > value
            query = query.where(or_(beyond, and_(key == value, uid < last if order.is_descending else uid > last)))
    ways = (key.desc(), uid.desc()) if order.is_descending else (key.asc(), uid.asc())
    return query.order_by(*ways).limit(size)


def conditions_of(bounds: JobBounds) -> Iterator[ColumnElement[bool]]:
    """Yields the conditions that the database can evaluate of a filter's bounds."""
    if bounds.job_id is not None:
        yield JOBS.c.job_id == bounds.job_id
    if len(bounds.states) < len(JobState):
        yield JOBS.c.state.in_(sorted(bounds.states))
    for key, value in bounds.labels.items():
        yield JOBS.c.labels[key].as_string() == value
    if bounds.since_s is not None:
        yield JOBS.c.create_time_s >= bounds.since_s
    if bounds.until_s is not None:
        yield JOBS.c.create_time_s <= bounds.until_s
    for name, column in _DOCUMENTS.items():
        document = cast(column, _TEXT)
        for text in sorted(bounds.texts.get(name, ())):
            yield or_(document.icontains(text, autoescape=True), document.contains(_ESCAPE, autoescape=True))
