"""What a project may use at once, and what it uses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import final

from pydantic import Field

from lockstep.jobs.fields import AbstractDocument, Int32
from lockstep.jobs.rules import parse_document
from lockstep.jobs.scheduling.demands import QueuedJob
from lockstep.jobs.spec import AcceleratorType


@final
@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one project; None, or no entry, is no limit.

    Attributes:
        machines: how many replicas may run at once.
        accelerators: how many accelerators may be in use at once, by type.
    """

    machines: int | None = None
    accelerators: Mapping[str, int] = field(default_factory=dict[str, int])

    def refuses(self, job: QueuedJob) -> str | None:
        """Says why a job could not start even if nothing of the project ran; None where it could."""
        if self.machines is not None and job.num_machines > self.machines:
            return f"quota of project {job.project}: {job.num_machines} machines asked for, {self.machines} allowed"
        for kind, count in job.accelerators.items():
            limit = self.accelerators.get(kind)
            if limit is not None and count > limit:
                return f"quota of project {job.project}: {count} {kind} asked for, {limit} allowed"
        return None


@final
class _ProjectQuota(AbstractDocument):
    machines: Int32 | None = Field(default=None, ge=0)
    accelerators: dict[AcceleratorType, Int32] = Field(default_factory=dict[AcceleratorType, int])


@final
class _QuotaFile(AbstractDocument):
    projects: dict[str, _ProjectQuota] = Field(default_factory=dict[str, _ProjectQuota])


def parse_quotas(document: object, *, source: str) -> dict[str, Quota]:
    """Reads the content of a quota file: ``projects`` by name, each with ``machines`` and ``accelerators`` by type.

    Args:
        document: what the YAML parser gave.
        source: the file's name, for errors.

    Raises:
        ConfigError: it has an unknown key or a wrong type.
    """
    read = parse_document(_QuotaFile, document=document, source=source)
    return {
        project: Quota(
            machines=quota.machines,
            accelerators={kind.value: count for kind, count in quota.accelerators.items()},
        )
        for project, quota in read.projects.items()
    }


@final
class ProjectUsage:
    """What the jobs of one project hold now."""

    def __init__(self) -> None:
        self._jobs: dict[str, QueuedJob] = {}
        self._accelerators: dict[str, int] = {}
        self._num_machines = 0

    def add(self, job: QueuedJob) -> None:
        """Counts a job that starts."""
        self._jobs[job.uid] = job
        self._num_machines += job.num_machines
        for kind, count in job.accelerators.items():
            self._accelerators[kind] = self._accelerators.get(kind, 0) + count

    def remove(self, job: QueuedJob) -> None:
        """Counts a job no longer."""
        del self._jobs[job.uid]
        self._num_machines -= job.num_machines
        for kind, count in job.accelerators.items():
            self._accelerators[kind] -= count

    def blocks(self, job: QueuedJob, *, quota: Quota) -> str | None:
        """Says why a job may not start now; None where it may."""
        if quota.machines is not None and self._num_machines + job.num_machines > quota.machines:
            return self._words(job, self._num_machines, quota.machines, "machines", list(self._jobs.values()))
        for kind, count in job.accelerators.items():
            limit, used = quota.accelerators.get(kind), self._accelerators.get(kind, 0)
            if limit is not None and used + count > limit:
                users = [other for other in self._jobs.values() if other.accelerators.get(kind)]
                return self._words(job, used, limit, kind, users)
        return None

    @staticmethod
    def _words(job: QueuedJob, used: int, limit: int, what: str, users: list[QueuedJob]) -> str:
        by = ""
        if users:
            by = f" by job {users[0].name}"
            by += f" and {len(users) - 1} more" if len(users) > 1 else ""
        return f"quota of project {job.project}: {used} of {limit} {what} in use{by}"
