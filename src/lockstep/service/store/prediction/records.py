"""Records of the database about models: a model, its versions, and operations on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final, final

from pydantic import TypeAdapter

from lockstep.jobs.input.spec import AcceleratorConfig
from lockstep.jobs.running.order_parts import FileOrder
from lockstep.service.store.prediction.containers import VersionContainer
from lockstep.service.store.prediction.policies import Batching, RequestLogging, ScalingPolicy
from lockstep.service.store.prediction.traffic import Traffic

ACCELERATOR: Final = TypeAdapter(AcceleratorConfig)


@final
class VersionState(StrEnum):
    """The states of a version, by the contract's names."""

    READY = "READY"
    CREATING = "CREATING"
    FAILED = "FAILED"
    DELETING = "DELETING"


@final
@dataclass(frozen=True, kw_only=True)
class ModelRecord:
    """A model: a name that has versions.

    Attributes:
        region: the region of its prediction servers; None for any.
        revision: a number that changes whenever somebody changes the model.
        traffic: which versions answer the requests that name no version.
        max_versions: how many versions are kept when another one becomes READY; None for all.
    """

    project: str
    name: str
    description: str
    labels: Mapping[str, str]
    region: str | None
    revision: int
    traffic: Traffic
    max_versions: int | None
    create_time_s: float

    @property
    def default_version(self) -> str | None:
        """The name of the default version, which has the largest share of the traffic; None if there is none."""
        return self.traffic[0].version if self.traffic else None


@final
@dataclass(frozen=True, kw_only=True)
class ModelChanges:
    """What changes of a model.

    Attributes:
        columns: the columns to set.
        split: the new percent of each version, by name; None if the traffic stays.
    """

    columns: Mapping[str, Any] = field(default_factory=dict[str, Any])
    split: Mapping[str, int] | None = None


@final
@dataclass(frozen=True, kw_only=True)
class VersionRecord:
    """A deployed version of a model.

    Attributes:
        uid: the permanent, unique id of the version.
        error_message: why it failed, or why its files could not be copied yet; None if nothing failed.
        deployment_uri: the bucket URL of the model's file, or of the folder that contains it; for a custom prediction
            routine or a container, of a folder of files. A container may have none; then it is "".
        files: the version's own copies of the deployed files; empty until they have been copied.
        package_uris: the bucket URLs of packages with the classes of its model.
        python_module: the module that its job ran; None if it is not known.
        prediction_class: the class of its custom prediction routine; None if it serves a model.
        container: the container of the user's own that serves it; None if it serves a model or a routine.
        python_version: the version of Python that was asked for; None if none was.
        framework: the framework that was asked for; None if none was.
        accelerator: the accelerators of each of its servers, beside those that are built into the machine type.
        region: the region of its servers, which is that of its model; None for any.
        revision: a number that changes whenever somebody changes the version.
        num_servers: the number of prediction servers that it should have now.
        scaling: how this number follows the load; None if it is fixed.
        num_failures: the number of its servers in a row that ended before they were ready.
        last_failure_time_s: the time of the last of these ends, in seconds since 1970 UTC; None if there was none.
        last_use_time_s: the time of its last request for predictions, to the minute, in seconds since 1970 UTC; None if
            it had none.
        uploaded_model: the name of the uploaded model that it was deployed from; None if from none.
        split_when_ready: the percents of its model's versions once it is READY, by name; None if they stay as they are.
        update_operation: the name of the operation that ends when its servers are as many as wanted; None if none does.
        request_logging: which of its requests are written to a bucket; None if none are.
        batching: how its servers batch requests; None if as they do by default.
    """

    project: str
    model: str
    name: str
    uid: str
    description: str
    labels: Mapping[str, str]
    deployment_uri: str
    files: tuple[FileOrder, ...]
    package_uris: Sequence[str]
    python_module: str | None
    machine_type: str
    state: VersionState
    error_message: str | None
    create_time_s: float
    num_servers: int
    num_failures: int
    last_failure_time_s: float | None
    prediction_class: str | None = None
    container: VersionContainer | None = None
    python_version: str | None = None
    framework: str | None = None
    accelerator: AcceleratorConfig | None = None
    region: str | None = None
    revision: int = 0
    last_use_time_s: float | None = None
    update_operation: str | None = None
    uploaded_model: str | None = None
    split_when_ready: Mapping[str, int] | None = None
    scaling: ScalingPolicy | None = None
    request_logging: RequestLogging | None = None
    batching: Batching | None = None

    @property
    def has_files(self) -> bool:
        """Whether it has all files that it needs in the version's own folder."""
        return bool(self.files) or not self.deployment_uri


ModelChange = Callable[[ModelRecord], ModelChanges]
"""Returns what changes of a model, by what it is now."""
VersionChange = Callable[[VersionRecord], Mapping[str, Any]]
"""Returns the columns of a version to set, by what it is now."""


@final
class OperationCode(IntEnum):
    """The error codes of operations, by the numbers of ``google.rpc.Code``."""

    CANCELLED = 1
    FAILED_PRECONDITION = 9


CANCELLED_BY: Final = "cancelled by "
"""How the error message of an operation begins that somebody cancelled."""


@final
@dataclass(frozen=True, kw_only=True)
class OperationRecord:
    """An operation on a version or a model.

    Attributes:
        error_code: an `OperationCode`; None while the operation continues, and if it succeeded.
        error_message: the error message; None if there is no error code.
    """

    name: str
    project: str
    kind: str
    model: str
    version: str | None
    create_time_s: float
    end_time_s: float | None
    error_code: int | None
    error_message: str | None

    @property
    def is_cancellation_requested(self) -> bool:
        """Whether somebody has cancelled it. Then it has ended, too."""
        return self.error_code == OperationCode.CANCELLED and (self.error_message or "").startswith(CANCELLED_BY)
