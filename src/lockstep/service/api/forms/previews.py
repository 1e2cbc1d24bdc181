"""A job that is only tried."""

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
    """What a replica would be."""

    name: str
    machine: str
    vcpus: int
    memoryGib: float
    acceleratorsSimulated: bool
    container: ContainerPreviewForm | None
    command: list[str]
    packages: list[str]
    environment: dict[str, str]


@with_config(STRICT)
class CostPreviewForm(TypedDict):
    """What so much of a job would cost."""

    mlUnits: str | None
    costUsd: str | None
    unpriced: list[str]


@with_config(STRICT)
class PricePreviewForm(TypedDict):
    """What a job would cost an hour, and at the most."""

    region: str
    mlUnitUsd: str
    hour: CostPreviewForm
    most: CostPreviewForm
    maxRunningSeconds: float
    lists: list[str]


@with_config(STRICT)
class QueuePreviewForm(TypedDict):
    """Where a job would be in the queue."""

    needs: list[str]
    startsNow: bool
    position: int | None
    reason: str | None
    startBySeconds: float | None


@with_config(STRICT)
class PreviewForm(TypedDict):
    """What a job would be: a ``problem``, or what the service would do with it."""

    jobId: str
    project: str
    trainingInput: dict[str, Any]
    labels: dict[str, str]
    replicas: list[ReplicaPreviewForm]
    passedOn: list[str]
    outputs: dict[str, str]
    price: PricePreviewForm
    problem: NotRequired[str]
    simulated: NotRequired[bool]
    queue: NotRequired[QueuePreviewForm]
