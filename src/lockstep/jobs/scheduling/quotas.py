"""Defines what a project may use, and tracks what it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Annotated, final

from pydantic import Field

from lockstep.jobs.input.spec import AcceleratorType
from lockstep.jobs.parsing.fields import AbstractDocument, Dollars, Double, Int32
from lockstep.jobs.parsing.project_files import parse_projects
from lockstep.jobs.scheduling.demands import QueuedJob


@final
@dataclass(frozen=True, kw_only=True)
class Quota:
    """The limits of one project; None, or no entry, means no limit.

    Attributes:
        machines: the maximum number of replicas that run at once.
        accelerators: the maximum number of accelerators in use at once, by type.
        dollars_per_day: the amount in US dollars that the project's jobs may spend in a day (UTC) before no more of
            them start. Simulated machines count like real ones.
        requests_per_second: the rate of the project's requests for predictions at each service. The queue ignores it.
    """

    machines: int | None = None
    accelerators: Mapping[str, int] = field(default_factory=dict[str, int])
    dollars_per_day: Decimal | None = None
    requests_per_second: float | None = None

    def why_impossible(self, job: QueuedJob) -> str | None:
        """Returns why a job could not start even if no other job of the project ran; None if it could."""
        if self.dollars_per_day == 0:
            return f"quota of project {job.project}: $0.00 a day is allowed"
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
    accelerators: dict[AcceleratorType, Annotated[Int32, Field(ge=0)]] = Field(
        default_factory=dict[AcceleratorType, int]
    )
    dollars_per_day: Dollars | None = None
    requests_per_second: Double | None = Field(default=None, gt=0)


def parse_quotas(document: object, *, source: str) -> dict[str, Quota]:
    """Parses the content of a quota file: ``projects`` by name, each with its limits.

    Args:
        document: the value that the YAML parser returned.
        source: the file's name, for error messages.

    Raises:
        ConfigError: If the document has an unknown key or a wrong type.
    """
    return {
        project: Quota(
            machines=quota.machines,
            accelerators={kind.value: count for kind, count in quota.accelerators.items()},
            dollars_per_day=quota.dollars_per_day,
            requests_per_second=quota.requests_per_second,
        )
        for project, quota in parse_projects(_ProjectQuota, document=document, source=source).items()
    }


@final
@dataclass(frozen=True, kw_only=True)
class ProjectUse:
    """What the running jobs of one project use.

    Attributes:
        num_machines: the number of their replicas.
        accelerators: the number of their accelerators by type, including simulated ones.
    """

    num_machines: int
    accelerators: Mapping[str, int]


@final
class Quotas:
    """The limits of all projects, and the current usage by their running jobs.

    Args:
        limits: the limits by project; a project without an entry has none.
    """

    def __init__(self, limits: Mapping[str, Quota]) -> None:
        self._limits = dict(limits)
        self._usage: dict[str, _Usage] = {}
        self._held: Mapping[str, str] = {}

    def __contains__(self, project: str) -> bool:
        return project in self._limits

    def replace_limits(self, limits: Mapping[str, Quota]) -> None:
        """Replaces the limits of all projects."""
        self._limits = dict(limits)

    @property
    def held(self) -> Mapping[str, str]:
        """The projects that may currently start no jobs, each with the reason."""
        return self._held

    def replace_held(self, reasons: Mapping[str, str]) -> None:
        """Replaces the list of projects that may currently start no jobs; each must have an entry among the limits."""
        assert reasons.keys() <= self._limits.keys(), "jobs of projects without limits share their groups"
        self._held = dict(reasons)

    def hold(self, job: QueuedJob) -> None:
        """Adds a job that starts to its project's usage."""
        self._usage.setdefault(job.project, _Usage()).count(job, sign=1)

    def release(self, job: QueuedJob) -> None:
        """Removes a job from its project's usage."""
        usage = self._usage[job.project]
        usage.count(job, sign=-1)
        if not usage.jobs:
            del self._usage[job.project]

    def uses(self) -> dict[str, ProjectUse]:
        """Returns what the running jobs of each project use, for projects with some."""
        return {
            project: ProjectUse(num_machines=usage.num_machines, accelerators=dict(usage.accelerators))
            for project, usage in self._usage.items()
        }

    def why_impossible(self, job: QueuedJob) -> str | None:
        """Returns why a job could not start even if no other job of its project ran; None if it could."""
        quota = self._limits.get(job.project)
        return None if quota is None else quota.why_impossible(job)

    def why_blocked(self, job: QueuedJob, *, promised: Sequence[QueuedJob]) -> str | None:
        """Returns why a job may not start now; None if it may.

        Args:
            job: the job.
            promised: the jobs ahead of it that have a promise. Their project's quota must not prevent their start when
                the time comes, so what they need counts as in use.
        """
        quota = self._limits.get(job.project)
        if quota is None:
            return None
        if job.project in self._held:
            return self._held[job.project]
        usage = self._usage.get(job.project) or _Usage()
        ahead = [other for other in promised if other.project == job.project]
        if quota.machines is not None:
            kept = sum(other.num_machines for other in ahead)
            if usage.num_machines + kept + job.num_machines > quota.machines:
                counts = (usage.num_machines, quota.machines, kept)
                return _describe(job, "machines", counts=counts, users=list(usage.jobs.values()), ahead=ahead)
        for kind, count in job.accelerators.items():
            limit, used = quota.accelerators.get(kind), usage.accelerators.get(kind, 0)
            kept = sum(other.accelerators.get(kind, 0) for other in ahead)
            if limit is not None and used + kept + count > limit:
                users = [other for other in usage.jobs.values() if other.accelerators.get(kind)]
                return _describe(job, kind, counts=(used, limit, kept), users=users, ahead=ahead)
        return None


@final
@dataclass(kw_only=True, slots=True)
class _Usage:
    """The current usage of the jobs of one project."""

    jobs: dict[str, QueuedJob] = field(default_factory=dict[str, QueuedJob])
    num_machines: int = 0
    accelerators: dict[str, int] = field(default_factory=dict[str, int])

    def count(self, job: QueuedJob, *, sign: int) -> None:
        if sign > 0:
            self.jobs[job.uid] = job
        else:
            del self.jobs[job.uid]
        self.num_machines += sign * job.num_machines
        for kind, count in job.accelerators.items():
            self.accelerators[kind] = self.accelerators.get(kind, 0) + sign * count


def _describe(
    job: QueuedJob, what: str, *, counts: tuple[int, int, int], users: Sequence[QueuedJob], ahead: Sequence[QueuedJob]
) -> str:
    used, limit, kept = counts
    words = f"quota of project {job.project}: {used} of {limit} {what} in use"
    if users:
        words += f" by job {_names(users)}"
    return words + (f", {kept} kept for job {_names(ahead)} ahead of it" if kept else "")


def _names(jobs: Sequence[QueuedJob]) -> str:
    return jobs[0].name + (f" and {len(jobs) - 1} more" if len(jobs) > 1 else "")
