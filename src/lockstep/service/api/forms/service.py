"""The forms of the service's state, and of keys, secrets, costs and nodes."""

from __future__ import annotations

from typing import NotRequired

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.jobs.security.access import Scope
from lockstep.service.api.forms.answers import STRICT
from lockstep.service.api.forms.billing import AmountForm, BudgetForm
from lockstep.service.api.forms.control import ProgressForm
from lockstep.service.problems import Part
from lockstep.service.store import VersionState


@with_config(STRICT)
class KeyForm(TypedDict):
    """An API key. Only the response to its creation has the secret."""

    key: str
    label: str
    scope: Scope
    project: str
    createdBy: str
    createTime: str
    expireTime: str | None
    lastUsedTime: str | None
    revokeTime: str | None
    revokedBy: str | None
    model: str | None
    version: str | None
    requestsPerSecond: float | None
    secret: NotRequired[str]


@with_config(STRICT)
class KeyListForm(TypedDict):
    """All keys."""

    keys: list[KeyForm]


@with_config(STRICT)
class SecretNameForm(TypedDict):
    """The name of a secret that was set."""

    name: str


@with_config(STRICT)
class SecretForm(TypedDict):
    """A project's secret, without its value."""

    name: str
    createTime: str
    updateTime: str
    updatedBy: str


@with_config(STRICT)
class SecretListForm(TypedDict):
    """A project's secrets."""

    secrets: list[SecretForm]


@with_config(STRICT)
class CostRowForm(TypedDict):
    """A row of a cost report, with amounts as decimal strings."""

    name: str
    machineHours: str
    mlUnits: str
    costUsd: str
    owedUsd: str
    nodes: dict[str, AmountForm]
    storedGibMonths: str
    storedUsd: str | None
    serverHours: str
    unusedServerHours: str
    unusedUsd: str
    unpriced: list[str]
    sources: list[str]


@with_config(STRICT)
class CostReportForm(TypedDict):
    """A cost report: its rows and their total."""

    rows: list[CostRowForm]
    total: CostRowForm
    storageSource: str
    budgets: list[BudgetForm]


@with_config(STRICT)
class NodeUseForm(TypedDict):
    """A replica of a job, or a prediction server, on a node."""

    project: str
    jobId: str
    kind: str
    replica: str


@with_config(STRICT)
class NodeForm(TypedDict):
    """A node of a cluster whose machines are requested and released."""

    name: str
    slot: str
    nodeType: str
    machine: str
    state: str
    reason: str
    readySeconds: float | None
    askedTime: str | None
    upTime: str | None
    readyTime: str | None
    idleTime: str | None
    releasedTime: str | None
    downTime: str | None
    failedTime: str | None
    usdPerHour: str | None
    priceSource: str
    simulated: bool
    usedBy: list[NodeUseForm]


@with_config(STRICT)
class EngineNodeForm(TypedDict):
    """A node of a fixed set, as the engine has it."""

    name: str
    nodeType: str
    up: bool
    resources: dict[str, int]
    usedBy: list[NodeUseForm]


@with_config(STRICT)
class NodeListForm(TypedDict):
    """The ledger of nodes, or the engine's own nodes."""

    cluster: str | None
    nodes: list[NodeForm]
    engineNodes: list[EngineNodeForm]


@with_config(STRICT)
class NodePageForm(TypedDict):
    """A page of nodes of the ledger that ended."""

    nodes: list[NodeForm]
    nextPageToken: NotRequired[str]


@with_config(STRICT)
class ConsoleLinkForm(TypedDict):
    """A path that opens the console signed in, once, and for how many seconds it can be opened."""

    path: str
    lastsSeconds: float


@with_config(STRICT)
class WhoAmIForm(TypedDict):
    """The scope and project of a request's key, and the service's version and bucket."""

    key: str | None
    label: str
    scope: Scope
    project: str
    version: str
    bucket: str


@with_config(STRICT)
class WebhookForm(TypedDict):
    """The state of a webhook of the operator."""

    name: str
    place: str
    problem: str | None
    since: float | None


@with_config(STRICT)
class DeliveryForm(TypedDict):
    """An attempt to deliver a message to a webhook. Without ``problem``, it was accepted."""

    time: str
    messageId: str
    project: str
    jobId: str | None
    event: str
    state: str | None
    attempt: int
    status: int | None
    problem: str | None
    seconds: float


@with_config(STRICT)
class DeliveryListForm(TypedDict):
    """The last deliveries of a webhook, the latest first."""

    deliveries: list[DeliveryForm]


@with_config(STRICT)
class ProblemForm(TypedDict):
    """A problem of a part of the service."""

    part: Part
    text: str
    since: str
    kept: str


@with_config(STRICT)
class RunningForm(TypedDict):
    """A running job, with its progress."""

    project: str
    jobId: str
    progress: ProgressForm | None


@with_config(STRICT)
class DeployedForm(TypedDict):
    """A version that has, or will have, a prediction server."""

    name: str
    project: str
    state: VersionState
    errorMessage: str | None


@with_config(STRICT)
class RecordedForm(TypedDict):
    """The part of the service's state that is in the database; None and empty if the database does not answer."""

    controller: str | None
    jobs: dict[str, int] | None
    running: list[RunningForm]
    versions: list[DeployedForm]


@with_config(STRICT)
class DeathForm(TypedDict):
    """The last death of the service."""

    time: str
    how: str
    then: str


@with_config(STRICT)
class FindingForm(TypedDict):
    """A fault of the service's machine, and the command that mends it."""

    check: str
    severity: str
    what: str
    received: str
    needed: str
    remedy: str


@with_config(STRICT)
class RemarkForm(TypedDict):
    """A check without a fault: what it saw, or why it does not apply."""

    check: str
    text: str


@with_config(STRICT)
class DoctorForm(TypedDict):
    """The results of the checks of the service's machine; empty, without a time, until the first ones are known."""

    time: str | None
    checking: bool
    findings: list[FindingForm]
    passed: list[RemarkForm]
    skipped: list[RemarkForm]


class ServiceForm(RecordedForm):
    """The state of the service."""

    version: str
    pid: int
    startTime: str
    home: str
    bucket: str
    database: str
    maxRunningJobs: int
    programs: str
    programsWarning: str
    engine: dict[str, str]
    webhooks: list[WebhookForm]
    budgets: list[BudgetForm]
    problems: list[ProblemForm]
    keptBy: str | None
    lastDeath: DeathForm | None
