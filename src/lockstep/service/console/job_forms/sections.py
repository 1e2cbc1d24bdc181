"""Which fields the form has, and in which groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from lockstep.service.console.job_forms.documents import PREDICTION, TRAINING, is_prediction
from lockstep.service.console.job_forms.fields import Field, Kind

LABELS: Final = Field(path=("labels",), title="Labels", kind=Kind.PAIRS, example="team=vision", hint="One a line.")


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """A group of fields.

    Attributes:
        title: its title.
        fields: its fields.
        hint: a sentence about them; "" for none.
        is_open: whether it is open at first. One with a value, or with a problem, is open as well.
    """

    title: str
    fields: tuple[Field, ...]
    hint: str = ""
    is_open: bool = True


def _training(path: str, title: str, kind: Kind = Kind.TEXT, **options: str) -> Field:
    return Field(path=(TRAINING, *path.split(".")), title=title, kind=kind, **options)


def _prediction(path: str, title: str, kind: Kind = Kind.TEXT, **options: str) -> Field:
    return Field(path=(PREDICTION, *path.split(".")), title=title, kind=kind, **options)


def _role(key: str, title: str) -> Section:
    counted = () if key == "master" else (_training(f"{key}Count", "Count", Kind.NUMBER),)
    image = "Container image" if key == "master" else "Container image, if not the master's"
    return Section(
        title=title,
        is_open=key == "master",
        fields=(
            *counted,
            _training(f"{key}Type", "Machine type", Kind.CHOICE, choices="machines"),
            _training(f"{key}Config.acceleratorConfig.type", "Accelerators", Kind.CHOICE, choices="accelerators"),
            _training(f"{key}Config.acceleratorConfig.count", "How many for each", Kind.NUMBER),
            _training(f"{key}Config.imageUri", image, example="registry.example.com/train:1"),
        ),
    )


_WHEN: Final = "How long it may run and wait, and what happens when it fails"
_MACHINES: Final = "Machine types, accelerators and counts are for scale tier CUSTOM. The other tiers have their own."

_TRAINING_SECTIONS: Final = (
    Section(
        title="Program",
        fields=(
            _training("pythonModule", "Python module", example="train"),
            _training("args", "Arguments", Kind.LINES, hint="One a line.", example="--epochs\n3"),
            _training(
                "packageUris",
                "Packages",
                Kind.LINES,
                hint="URLs of .tar.gz archives and wheels, one a line. The program's own code is the first one.",
                example="gs://bucket/packages/my_job.tar.gz",
            ),
            _training(
                "lockstep.environment.requirements",
                "Requirements",
                hint="A file of the first package that lists what the program needs.",
                example="requirements.txt",
            ),
        ),
    ),
    Section(
        title="Machines",
        hint=_MACHINES,
        fields=(
            _training("scaleTier", "Scale tier", Kind.CHOICE, choices="tiers"),
            _training("region", "Region", example="us-central1", hint="Its prices apply."),
        ),
    ),
    _role("master", "Master"),
    _role("worker", "Workers"),
    _role("parameterServer", "Parameter servers"),
    _role("evaluator", "Evaluators"),
    Section(
        title=_WHEN,
        fields=(
            _training("scheduling.priority", "Priority", Kind.NUMBER, hint="0 to 1000.", example="0"),
            _training("scheduling.maxRunningTime", "Runs at most", example="7200s"),
            _training("scheduling.maxWaitTime", "Waits at most", example="86400s"),
            _training("lockstep.restartPolicy.condition", "Restarts", Kind.CHOICE, choices="restarts"),
            _training("lockstep.restartPolicy.maxRestarts", "Restarts at most", Kind.NUMBER, example="3"),
            _training("lockstep.stuckAfter", "Stuck after a silence of", example="600s"),
            _training("lockstep.provisioningTimeout", "Machines are up within", example="1200s"),
        ),
    ),
    Section(
        title="Results",
        fields=(
            _training("jobDir", "Job folder", hint="Passed to the program as --job-dir.", example="gs://bucket/runs/7"),
            _training(
                "lockstep.baseOutputDirectory",
                "Output folder",
                hint="Not passed to the program. Give one of both, or none.",
                example="gs://bucket/runs/7",
            ),
        ),
    ),
    Section(
        title="Environment variables",
        hint="One NAME=VALUE a line. Everybody who may see the job sees them.",
        is_open=False,
        fields=tuple(
            _training(f"lockstep.env.{role}", title, Kind.PAIRS)
            for role, title in (
                ("master", "Of the master"),
                ("worker", "Of workers"),
                ("ps", "Of parameter servers"),
                ("evaluator", "Of evaluators"),
            )
        ),
    ),
    Section(
        title="More",
        is_open=False,
        fields=(
            _training("useChiefInTfConfig", "TF_CONFIG calls the master chief", Kind.FLAG),
            _training("enableWebAccess", "Shells may be opened", Kind.FLAG),
            _training("pythonVersion", "Python version"),
            _training("runtimeVersion", "Runtime version", hint="Ignored: there is one runtime."),
        ),
    ),
)
_PREDICTION_SECTIONS: Final = (
    Section(
        title="Model",
        hint="Name one of the three.",
        fields=(
            _prediction("modelName", "Model", example="projects/local/models/digits"),
            _prediction("versionName", "Version", example="projects/local/models/digits/versions/v1"),
            _prediction("uri", "A .keras file, or its folder", example="gs://bucket/run/model"),
            _prediction("batchSize", "Instances in a batch", Kind.NUMBER, example="64"),
            _prediction("lockstep.packageUris", "Packages with the classes of the file", Kind.LINES),
            _prediction("lockstep.pythonModule", "The module of the job that made it"),
        ),
    ),
    Section(
        title="Instances and predictions",
        fields=(
            _prediction("inputPaths", "Input files", Kind.LINES, hint="URLs, one a line.", example="gs://bucket/in/*"),
            _prediction("dataFormat", "Format", Kind.CHOICE, choices="formats"),
            _prediction("lockstep.dataFormat", "Format, for images", Kind.CHOICE, choices="image_formats"),
            _prediction("lockstep.keyField", "Key field", hint="Copied to each prediction."),
            _prediction("outputPath", "Folder for predictions", example="gs://bucket/out"),
            _prediction("outputDataFormat", "Format of predictions", Kind.CHOICE, choices="output_formats"),
            _prediction("lockstep.shardSizeMib", "Input for one file of predictions, in MiB", Kind.NUMBER),
        ),
    ),
    Section(
        title="Machines",
        fields=(
            _prediction("maxWorkerCount", "Count", Kind.NUMBER, example="1"),
            _prediction("lockstep.machineType", "Machine type", Kind.CHOICE, choices="machines"),
            _prediction("lockstep.acceleratorConfig.type", "Accelerators", Kind.CHOICE, choices="accelerators"),
            _prediction("lockstep.acceleratorConfig.count", "How many for each", Kind.NUMBER),
            _prediction("region", "Region", example="us-central1", hint="Its prices apply."),
        ),
    ),
    Section(
        title=_WHEN,
        fields=(
            _prediction("lockstep.scheduling.priority", "Priority", Kind.NUMBER, hint="0 to 1000.", example="0"),
            _prediction("lockstep.scheduling.maxRunningTime", "Runs at most", example="7200s"),
            _prediction("lockstep.scheduling.maxWaitTime", "Waits at most", example="86400s"),
            _prediction("lockstep.restartPolicy.condition", "Restarts", Kind.CHOICE, choices="restarts"),
            _prediction("lockstep.restartPolicy.maxRestarts", "Restarts at most", Kind.NUMBER, example="3"),
        ),
    ),
)


def sections_of(document: dict[str, Any]) -> tuple[Section, ...]:
    """Returns the groups of fields of a document's kind."""
    return _PREDICTION_SECTIONS if is_prediction(document) else _TRAINING_SECTIONS


def fields_of(document: dict[str, Any]) -> Sequence[Field]:
    """Returns all fields of a document's kind, labels first."""
    return (LABELS, *(field for section in sections_of(document) for field in section.fields))
