"""The forms of a job's preview."""

from __future__ import annotations

from typing import Any, NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.service.api.forms.answers import STRICT


@with_config(STRICT)
class ContainerPreviewForm(TypedDict):
    """The container that a replica would run in."""

    image: str
    cpus: int | None
    memoryBytes: int | None
    readable: list[str]


@with_config(STRICT)
class ReplicaPreviewForm(TypedDict):
    """A replica as it would be. ``replicasLikeIt`` is there if it stands for all of its role."""

    name: str
    machine: str
    vcpus: int
    memoryGib: float
    acceleratorsSimulated: bool
    container: ContainerPreviewForm | None
    command: list[str]
    packages: list[str]
    environment: dict[str, str]
    replicasLikeIt: NotRequired[int]


@with_config(STRICT)
class CostPreviewForm(TypedDict):
    """The cost of a job for a certain running time."""

    mlUnits: str | None
    costUsd: str | None
    unpriced: list[str]


@with_config(STRICT)
class PricePreviewForm(TypedDict):
    """The price of a job: for an hour, and for its maximum running time."""

    region: str
    mlUnitUsd: str
    hour: CostPreviewForm
    most: CostPreviewForm
    maxRunningSeconds: float
    lists: list[str]


@with_config(STRICT)
class QueuePreviewForm(TypedDict):
    """The position that a job would have in the queue."""

    needs: list[str]
    startsNow: bool
    position: int | None
    reason: str | None
    startBySeconds: float | None


@with_config(STRICT)
class SearchPreviewForm(TypedDict):
    """A preview of a search: how many trials it has at most, in all and at a time, and the point of the first one."""

    numTrials: int
    numParallelTrials: int
    firstTrial: dict[str, str]


@with_config(STRICT)
class PreviewForm(TypedDict):
    """A preview of a job, with a ``problem`` if the service would reject the job, else ``simulated`` and ``queue``.

    ``ignored`` has a line for each field that this version ignores. Of a search, ``replicas`` and ``outputs`` are those
    of the first trial, and ``price`` is that of all trials that run at a time.
    """

    jobId: str
    project: str
    trainingInput: NotRequired[dict[str, Any]]
    predictionInput: NotRequired[dict[str, Any]]
    labels: dict[str, str]
    replicas: list[ReplicaPreviewForm]
    passedOn: list[str]
    outputs: dict[str, str]
    price: PricePreviewForm
    ignored: list[str]
    search: NotRequired[SearchPreviewForm]
    problem: NotRequired[str]
    simulated: NotRequired[bool]
    queue: NotRequired[QueuePreviewForm]


@with_config(STRICT)
class ResolvedJobForm(TypedDict):
    """What the service makes of a job: its input with all defaults, and the first replica of each role."""

    trainingInput: dict[str, Any]
    replicas: list[ReplicaPreviewForm]
    passedOn: list[str]
    outputs: dict[str, str]


@with_config(STRICT)
class JobConfigForm(TypedDict):
    """A job as it was submitted, and what the service makes of it.

    ``resolved`` is missing, and ``problem`` says why, if this version cannot read the job.
    """

    submitted: dict[str, Any]
    ignored: list[str]
    resolved: NotRequired[ResolvedJobForm]
    problem: NotRequired[str]
