"""What a job of the database asks for: its input, its gang."""

from __future__ import annotations

from lockstep.jobs.input.candidates import candidate as with_candidate
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.input.gangs import Gang, resolve
from lockstep.jobs.input.spec import TrainingInput
from lockstep.jobs.machines.catalogue import Catalogue
from lockstep.service.store import JobRecord


def training_input_of(job: JobRecord, *, candidate: int | None = None) -> TrainingInput:
    """Returns what a job asks for, with one of its sets of machines.

    Args:
        job: the job.
        candidate: which set; the one that it has, or is to have, if left out.

    Raises:
        ConfigError: this version cannot read it.
    """
    source = f"job {job.job_id}"
    asked = parse_training_input({"trainingInput": job.training_input}, source=source)
    return with_candidate(asked, number=job.candidate if candidate is None else candidate, source=source)


def gang_of(job: JobRecord, *, catalogue: Catalogue) -> Gang:
    """Returns the replicas that a job asks for, on the machines that it has, or is to have.

    Raises:
        ConfigError: this version cannot read it.
    """
    return resolve(training_input_of(job), catalogue=catalogue)
