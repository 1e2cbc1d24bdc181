"""What a job of the database asks for, and what was ordered for it: each parsed once, and kept while it is in use."""

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

NUM_KEPT: Final = 2048
"""Of so many inputs, and of so many orders, those that were used last are kept parsed."""


def training_input_of(job: JobRecord, *, candidate: int | None = None) -> TrainingInput:
    """Returns what a job asks for, with one of its sets of machines.

    Args:
        job: the job.
        candidate: which set; the one that it has, or is to have, if left out.

    Raises:
        ConfigError: this version cannot read it.
    """
    number = job.candidate if candidate is None else candidate
    return _parse_input(_Stored(uid=job.uid, number=number, name=job.job_id, document=job.training_input))


def gang_of(job: JobRecord, *, catalogue: Catalogue) -> Gang:
    """Returns the replicas that a job asks for, on the machines that it has, or is to have.

    Raises:
        ConfigError: this version cannot read it.
    """
    return resolve(training_input_of(job), catalogue=catalogue)


def order_of(job: JobRecord) -> GangOrder | None:
    """Returns what was ordered last for a job's gang, maybe for an earlier start of it; None where nothing was."""
    if job.gang_order is None:
        return None
    return _parse_order(_Stored(uid=job.uid, number=job.attempt, name=job.job_id, document=job.gang_order))


def current_order_of(job: JobRecord) -> GangOrder | None:
    """Returns what was ordered for this start of a job's gang; None where nothing is yet."""
    order = order_of(job)
    return order if order is not None and order.gang_id == f"{job.uid}-{job.attempt}" else None


@final
@dataclass(frozen=True, kw_only=True)
class _Stored:
    """A document of the database: found by its job and number, and the same only where its content is."""

    uid: str
    number: int
    name: str
    document: Mapping[str, Any] = field(hash=False)


@lru_cache(maxsize=NUM_KEPT)
def _parse_input(stored: _Stored) -> TrainingInput:
    source = f"job {stored.name}"
    asked = parse_training_input({"trainingInput": stored.document}, source=source)
    return with_candidate(asked, number=stored.number, source=source)


@lru_cache(maxsize=NUM_KEPT)
def _parse_order(stored: _Stored) -> GangOrder:
    return GANG_ORDER.validate_python(stored.document)
