"""Parses the training inputs, gangs and gang orders of recorded jobs, and caches the parsed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final, final

from lockstep.jobs.input.candidates import candidate as with_candidate
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import Gang, resolve
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.jobs.running.orders import GANG_ORDER, GangOrder
from lockstep.service.store import JobRecord

CACHE_SIZE: Final = 2048
"""The number of training inputs, of gangs, and of orders that are cached; the least recently used are evicted."""


def training_input_of(job: JobRecord, *, candidate: int | None = None) -> TrainingInput:
    """Returns the training input of a job, with one of its candidates.

    Args:
        job: the job.
        candidate: the number of the candidate; the job's current one if omitted.

    Raises:
        ConfigError: If this version cannot read the job.
    """
    return _parse_input(_stored_input(job, candidate))


def gang_of(job: JobRecord, *, candidate: int | None = None, catalogue: Catalogue) -> Gang:
    """Returns the gang of a job, on the machines of one of its candidates.

    Args:
        job: the job.
        candidate: the number of the candidate; the job's current one if omitted.
        catalogue: the available machines.

    Raises:
        ConfigError: If this version cannot read the job.
    """
    return _resolve(_Resolved(stored=_stored_input(job, candidate), catalogue=catalogue))


def order_of(job: JobRecord) -> GangOrder | None:
    """Returns the last order for a job's gang, which may be that of an earlier attempt; None if there is none."""
    if job.gang_order is None:
        return None
    return _parse_order(_Stored(uid=job.uid, number=job.attempt, name=job.job_id, document=job.gang_order))


def current_order_of(job: JobRecord) -> GangOrder | None:
    """Returns the order for the current attempt of a job; None if there is none yet."""
    order = order_of(job)
    return order if order is not None and order.gang_id == f"{job.uid}-{job.attempt}" else None


@final
@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A cache key for a stored document. The hash uses uid, number and name; equality also compares the content."""

    uid: str
    number: int
    name: str
    document: Mapping[str, Any] = field(hash=False)


@final
@dataclass(frozen=True, kw_only=True)
class _Resolved:
    """A cache key for a gang: the stored training input, and the machines that were available."""

    stored: _Stored
    catalogue: Catalogue = field(hash=False)


def _stored_input(job: JobRecord, candidate: int | None) -> _Stored:
    number = job.candidate if candidate is None else candidate
    return _Stored(uid=job.uid, number=number, name=job.job_id, document=job.training_input)


@lru_cache(maxsize=CACHE_SIZE)
def _resolve(key: _Resolved) -> Gang:
    return resolve(_parse_input(key.stored), catalogue=key.catalogue)


@lru_cache(maxsize=CACHE_SIZE)
def _parse_input(stored: _Stored) -> TrainingInput:
    source = f"job {stored.name}"
    asked = parse_training_input({"trainingInput": stored.document}, source=source)
    return with_candidate(asked, number=stored.number, source=source)


@lru_cache(maxsize=CACHE_SIZE)
def _parse_order(stored: _Stored) -> GangOrder:
    return GANG_ORDER.validate_python(stored.document)
