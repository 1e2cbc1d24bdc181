"""The forms of the JSON that commands print and that no route of the REST interface returns.

The others are in `lockstep.service.api.forms`. `docs/cli-json.md` is generated from both, and tests validate the output
of the commands against them. Commands do not import this module, because they start without Pydantic.
"""

from __future__ import annotations

from typing import NotRequired, TypeAlias

from pydantic import with_config
from typing_extensions import TypedDict

from lockstep.planning import Report
from lockstep.service.api.forms.answers import STRICT
from lockstep.service.api.forms.control import ArtifactForm
from lockstep.service.api.forms.service import FindingForm, RemarkForm

PlanForm: TypeAlias = Report
"""What a script's training step would need on the chips."""


@with_config(STRICT)
class StartedForm(TypedDict):
    """The service that was started, with a link that opens the console signed in, once, within five minutes."""

    url: str
    pid: int
    home: str
    bucket: str
    consoleUrl: str
    programsWarning: str


@with_config(STRICT)
class HomeForm(TypedDict):
    """The home of the service that was stopped."""

    home: str


@with_config(STRICT)
class ConsoleUrlForm(TypedDict):
    """A link that opens the console signed in, once, within five minutes."""

    url: str


@with_config(STRICT)
class ClusterChoiceForm(TypedDict):
    """The machines that jobs run on from the next start of the service on."""

    engine: str
    cluster: str | None
    address: str | None


@with_config(STRICT)
class DeletedModelForm(TypedDict):
    """The versions of a model that were deleted. If none is named, the model had none, and was deleted."""

    model: str
    versions: list[str]


@with_config(STRICT)
class ExportForm(TypedDict):
    """An exported model, and how far its results were from the original's on random batches."""

    path: str
    format: str
    sizeBytes: int
    batchSizes: list[int]
    maxDifference: float
    tolerance: float


@with_config(STRICT)
class BucketListForm(TypedDict):
    """The URLs of the buckets that were created."""

    buckets: list[str]


@with_config(STRICT)
class ObjectForm(TypedDict):
    """An object, or a folder, which has neither a size nor a time."""

    url: str
    sizeBytes: int | None
    updateTime: str | None


@with_config(STRICT)
class ObjectListForm(TypedDict):
    """Objects and folders."""

    objects: list[ObjectForm]


@with_config(STRICT)
class ObjectsForm(TypedDict):
    """How many objects were copied or deleted, and their total size."""

    numObjects: int
    sizeBytes: int


@with_config(STRICT)
class PackedSplitForm(TypedDict):
    """A split of a packed data set."""

    split: str
    numRecords: int
    numShards: int
    sizeBytes: int


@with_config(STRICT)
class PackedForm(TypedDict):
    """A packed data set. It ``wasThere`` if nothing was done, because it had been packed before."""

    bucket: str
    splits: list[PackedSplitForm]
    numSkipped: int
    wasThere: bool
    elapsedSeconds: float


@with_config(STRICT)
class DamageForm(TypedDict):
    """Damage in packed data: of a record by its number in its file, or of the file as a whole."""

    url: str
    record: int | None
    message: str


@with_config(STRICT)
class PackedFileForm(TypedDict):
    """A file of a packed data set. Its state is ``sound``, ``damaged``, ``missing`` or ``of another packing``."""

    file: str
    numRecords: int
    sizeBytes: int
    state: str


@with_config(STRICT)
class PackedSetForm(TypedDict):
    """A split of a packed data set as it was found. The counts are those of its sound files."""

    url: str
    numRecords: int
    sizeBytes: int
    classes: list[str]
    features: dict[str, str]
    source: str | None
    files: list[PackedFileForm]


@with_config(STRICT)
class InspectionForm(TypedDict):
    """What is in packed files, without their records."""

    sets: list[PackedSetForm]
    damages: list[DamageForm]
    notes: list[str]


@with_config(STRICT)
class VerificationForm(TypedDict):
    """The result of reading every record of packed files, with the first 1000 damages."""

    numRecords: int
    numStatedRecords: int
    numDamagedRecords: int
    numFiles: int
    numMissingFiles: int
    sizeBytes: int
    elapsedSeconds: float
    damages: list[DamageForm]
    notes: list[str]


@with_config(STRICT)
class MigrationRemarkForm(TypedDict):
    """A place in a script that you have to change by hand, by its line in the rewritten script."""

    line: int
    what: str
    link: str


@with_config(STRICT)
class MigratedScriptForm(TypedDict):
    """A script, and whether it was or would be rewritten; or the error because of which it was not."""

    path: str
    isChanged: bool
    remarks: list[MigrationRemarkForm]
    error: str | None


@with_config(STRICT)
class MigrationForm(TypedDict):
    """The scripts of a migration."""

    scripts: list[MigratedScriptForm]


@with_config(STRICT)
class PlacedFindingForm(FindingForm):
    """A fault of a machine, and the command that mends it. It is ``here`` or on the machine of the ``service``."""

    where: str


@with_config(STRICT)
class PlacedRemarkForm(RemarkForm):
    """A check without a fault: what it saw, or why it does not apply, ``here`` or on the machine of the ``service``."""

    where: str


@with_config(STRICT)
class DiagnosisForm(TypedDict):
    """The results of the checks of this machine, and of the service's machine if your key may ask for them."""

    findings: list[PlacedFindingForm]
    passed: list[PlacedRemarkForm]
    skipped: list[PlacedRemarkForm]


@with_config(STRICT)
class ReplicaUsageForm(TypedDict):
    """The last values of a replica's metrics. One that was not measured is missing."""

    replica: str
    cpuCores: NotRequired[float]
    memoryBytes: NotRequired[float]
    gpuUtilization: NotRequired[float]
    networkBytesPerSecond: NotRequired[float]
    examplesPerSecond: NotRequired[float]
    stepsPerSecond: NotRequired[float]


@with_config(STRICT)
class UsageForm(TypedDict):
    """What a job uses. The progress, the cost so far and the last line of the log are texts."""

    jobId: str
    state: str
    progress: str
    cost: str
    lastLine: str
    replicas: list[ReplicaUsageForm]


@with_config(STRICT)
class UsageListForm(TypedDict):
    """What the running jobs use."""

    jobs: list[UsageForm]


@with_config(STRICT)
class FetchedForm(ArtifactForm):
    """A file that a job left, and the file of this machine. It was ``fetched`` unless it was there, or is gone."""

    file: str
    fetched: bool


@with_config(STRICT)
class FetchedListForm(TypedDict):
    """The files that a job left and that were to be downloaded."""

    artifacts: list[FetchedForm]


@with_config(STRICT)
class FetchedProfileForm(TypedDict):
    """A profile of a job's training steps: the number of steps that were recorded, and the files of this machine."""

    job: str
    numSteps: int
    files: list[str]


@with_config(STRICT)
class WrittenFilesForm(TypedDict):
    """A folder, and the names of the files that were written in it."""

    folder: str
    files: list[str]
