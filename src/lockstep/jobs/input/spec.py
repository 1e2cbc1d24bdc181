"""Defines a job's training input: the contract's ``trainingInput``, parsed once into frozen models.

`lockstep.jobs.input.documents` parses the documents that contain it. `unsupported` lists what this version cannot
honour.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Annotated, Final, Literal, Self, final

from pydantic import BeforeValidator, Field, model_validator

from lockstep.jobs.input.hyperparameters import HyperparameterSpec, TuningOptions
from lockstep.jobs.notifications.job_webhooks import JobWebhooks
from lockstep.jobs.parsing.fields import (
    AbstractDocument,
    Duration,
    Flag,
    Int32,
    Int64,
    SecretName,
    Text,
    check_variables,
    duration_s,
)
from lockstep.jobs.parsing.rules import Violation, raise_violations
from lockstep.jobs.running.python_environments import PythonEnvironment
from lockstep.jobs.running.restarts import RestartPolicy

MAX_PACKAGES: Final = 100
MIN_WAIT_TIME_S: Final = 1800.0
MIN_STUCK_TIME_S: Final = 1.0
DEFAULT_PROVISIONING_TIME_S: Final = 1200.0
MAX_CANDIDATES: Final = 20
DEFAULT_RUNNING_TIME_S: Final = 604800.0

Role = Literal["master", "worker", "ps", "evaluator"]
"""A replica's role, by the contract's name."""


@final
class ScaleTier(StrEnum):
    """A named set of machines; with CUSTOM, the other fields list the machines."""

    BASIC = "BASIC"
    STANDARD_1 = "STANDARD_1"
    PREMIUM_1 = "PREMIUM_1"
    BASIC_GPU = "BASIC_GPU"
    BASIC_TPU = "BASIC_TPU"
    CUSTOM = "CUSTOM"


@final
class AcceleratorType(StrEnum):
    """Accelerators by the contract's names, and newer ones by Vertex AI's names."""

    NVIDIA_TESLA_K80 = "NVIDIA_TESLA_K80"
    NVIDIA_TESLA_P100 = "NVIDIA_TESLA_P100"
    NVIDIA_TESLA_V100 = "NVIDIA_TESLA_V100"
    NVIDIA_TESLA_P4 = "NVIDIA_TESLA_P4"
    NVIDIA_TESLA_T4 = "NVIDIA_TESLA_T4"
    NVIDIA_TESLA_A100 = "NVIDIA_TESLA_A100"
    NVIDIA_L4 = "NVIDIA_L4"
    NVIDIA_A100_80GB = "NVIDIA_A100_80GB"
    NVIDIA_H100_80GB = "NVIDIA_H100_80GB"
    NVIDIA_H200_141GB = "NVIDIA_H200_141GB"
    TPU_V2 = "TPU_V2"
    TPU_V3 = "TPU_V3"
    TPU_V2_POD = "TPU_V2_POD"
    TPU_V3_POD = "TPU_V3_POD"
    TPU_V4_POD = "TPU_V4_POD"
    TPU_V5E = "TPU_V5E"
    TPU_V5P = "TPU_V5P"
    TPU_V6E = "TPU_V6E"


@final
class AcceleratorConfig(AbstractDocument):
    """The accelerators of one replica.

    Attributes:
        count: the number of accelerators; TPUs v2 to v4 are counted in cores, later ones in chips.
        type: the type of the accelerators.
    """

    count: Int64 = Field(ge=1)
    type: AcceleratorType


@final
class DiskConfig(AbstractDocument):
    """The boot disk of one replica.

    Attributes:
        boot_disk_type: the type of the disk.
        boot_disk_size_gb: the disk's size, in GB.
    """

    boot_disk_type: Literal["pd-ssd", "pd-standard"] = "pd-ssd"
    boot_disk_size_gb: Int32 = Field(default=100, ge=1)


@final
class ReplicaConfig(AbstractDocument):
    """The hardware of each replica of a role, and the container that it runs.

    Attributes:
        accelerator_config: the accelerators.
        image_uri: the container image; roles without one use the master's.
        container_command: the command that replaces the image's entry point.
        container_args: the arguments of the entry point.
        tpu_tf_version: the TensorFlow version of a TPU's image.
        disk_config: the boot disk.
    """

    accelerator_config: AcceleratorConfig | None = None
    image_uri: Text | None = None
    container_command: tuple[Text, ...] = ()
    container_args: tuple[Text, ...] = ()
    tpu_tf_version: Text | None = None
    disk_config: DiskConfig | None = None


@final
class EncryptionConfig(AbstractDocument):
    """A customer-managed key.

    Attributes:
        kms_key_name: the key's resource name.
    """

    kms_key_name: Text | None = None


@final
class CandidateConfig(AbstractDocument):
    """The hardware of a replica in a candidate.

    Attributes:
        accelerator_config: the accelerators.
    """

    accelerator_config: AcceleratorConfig


@final
class Candidate(AbstractDocument):
    """An alternative set of machines that a job accepts if the requested ones are unavailable.

    A field that is left out keeps the requested value.

    Attributes:
        region: the alternative region.
        master_type: the alternative machine type of the master.
        worker_type: the alternative machine type of the workers.
        parameter_server_type: the alternative machine type of the parameter servers.
        evaluator_type: the alternative machine type of the evaluators.
        master_config: the alternative accelerators of the master.
        worker_config: the alternative accelerators of the workers.
        parameter_server_config: the alternative accelerators of the parameter servers.
        evaluator_config: the alternative accelerators of the evaluators.
    """

    region: Text | None = None
    master_type: Text | None = None
    worker_type: Text | None = None
    parameter_server_type: Text | None = None
    evaluator_type: Text | None = None
    master_config: CandidateConfig | None = None
    worker_config: CandidateConfig | None = None
    parameter_server_config: CandidateConfig | None = None
    evaluator_config: CandidateConfig | None = None


@final
class LockstepExtensions(AbstractDocument):
    """Lockstep's own extensions of the contract, under ``lockstep`` in a training input.

    Attributes:
        base_output_directory: the bucket URL for results, as in ``jobDir``, but not passed to the program as
            ``--job-dir``.
        env: the program's environment variables, by role and name.
        secrets: the names of the project's secrets, by the environment variable that passes the secret to all programs.
        restart_policy: whether and how often a failed job is restarted.
        environment: the packages of the job's Python environment.
        stuck_after: the time after which the program of a master or worker counts as stuck if it sends no heartbeat and
            prints no line; no limit by default.
        candidates: the alternative sets of machines, in order of preference.
        provisioning_timeout: the maximum time for the job's machines to come up, if they are not running yet; 1200s by
            default.
        webhooks: the job's webhooks, which are notified of its state changes.
        tuning: the options of a search over hyperparameters.
    """

    base_output_directory: Text | None = None
    env: dict[Role, Annotated[dict[Text, Text], BeforeValidator(check_variables)]] = Field(
        default_factory=dict[Role, dict[str, str]]
    )
    secrets: Annotated[dict[Text, SecretName], BeforeValidator(check_variables)] = Field(default_factory=dict[str, str])
    restart_policy: RestartPolicy = Field(default_factory=RestartPolicy)
    environment: PythonEnvironment = Field(default_factory=PythonEnvironment)
    stuck_after: Duration | None = None
    candidates: tuple[Candidate, ...] = Field(default=(), max_length=MAX_CANDIDATES)
    provisioning_timeout: Duration | None = None
    webhooks: JobWebhooks = ()
    tuning: TuningOptions = Field(default_factory=TuningOptions)

    @property
    def provisioning_timeout_s(self) -> float:
        """The maximum time for the job's machines to come up, in seconds."""
        if self.provisioning_timeout is None:
            return DEFAULT_PROVISIONING_TIME_S
        return duration_s(self.provisioning_timeout)

    @property
    def stuck_after_s(self) -> float | None:
        """The time without a sign after which a program counts as stuck, in seconds; None for no limit."""
        return None if self.stuck_after is None else duration_s(self.stuck_after)

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.stuck_after_s is not None and self.stuck_after_s < MIN_STUCK_TIME_S:
            raise_violations([Violation(path=("stuckAfter",), received=self.stuck_after, allowed="1s or more")])
        for role, variables in self.env.items():
            for name in sorted(self.secrets.keys() & variables.keys()):
                path, allowed = ("secrets", name), f"another variable: env.{role} has it too"
                raise_violations([Violation(path=path, received=self.secrets[name], allowed=allowed)])
        return self


@final
class Scheduling(AbstractDocument):
    """When a job runs, and for how long at most.

    Attributes:
        max_running_time: the maximum time in RUNNING; seven days by default.
        max_wait_time: the maximum time before RUNNING, at least 1800s; no limit by default.
        priority: the job's priority, 0 to 1000; jobs with a higher priority start earlier.
    """

    max_running_time: Duration | None = None
    max_wait_time: Duration | None = None
    priority: Int32 = 0

    @property
    def max_running_time_s(self) -> float:
        """The maximum time in RUNNING, in seconds."""
        return DEFAULT_RUNNING_TIME_S if self.max_running_time is None else duration_s(self.max_running_time)

    @property
    def max_wait_time_s(self) -> float | None:
        """The maximum time before RUNNING, in seconds; None for no limit."""
        return None if self.max_wait_time is None else duration_s(self.max_wait_time)

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations(_scheduling_violations(self))
        return self


@final
class TrainingInput(AbstractDocument):
    """What to run, and on which machines (``GoogleCloudMlV1__TrainingInput``).

    Counts, machine types and accelerators are only for scale tier CUSTOM; the other tiers define their own.

    Attributes:
        scale_tier: the named set of machines.
        master_type: the machine type of the master.
        worker_type: the machine type of the workers.
        parameter_server_type: the machine type of the parameter servers.
        evaluator_type: the machine type of the evaluators.
        worker_count: the number of workers in addition to the master.
        parameter_server_count: the number of parameter servers.
        evaluator_count: the number of evaluators.
        master_config: the hardware and container of the master.
        worker_config: the hardware and container of each worker.
        parameter_server_config: the hardware and container of each parameter server.
        evaluator_config: the hardware and container of each evaluator.
        package_uris: the bucket URLs of the program's packages, at most 100.
        python_module: the module to run.
        args: the program's arguments.
        hyperparameters: a search over hyperparameters.
        region: the region whose prices apply.
        job_dir: the bucket URL for results, passed to the program as ``--job-dir``.
        runtime_version: the runtime version of AI Platform.
        python_version: the Python version, such as "3.11".
        encryption_config: a customer-managed key.
        scheduling: when the job runs, and for how long at most.
        network: the network to peer with.
        service_account: the account to run as.
        use_chief_in_tf_config: whether ``TF_CONFIG`` calls the first replica chief rather than master.
        enable_web_access: whether to open interactive shells.
        lockstep: Lockstep's own extensions of the contract.
    """

    scale_tier: ScaleTier = ScaleTier.BASIC
    master_type: Text | None = None
    worker_type: Text | None = None
    parameter_server_type: Text | None = None
    evaluator_type: Text | None = None
    worker_count: Int64 = Field(default=0, ge=0)
    parameter_server_count: Int64 = Field(default=0, ge=0)
    evaluator_count: Int64 = Field(default=0, ge=0)
    master_config: ReplicaConfig | None = None
    worker_config: ReplicaConfig | None = None
    parameter_server_config: ReplicaConfig | None = None
    evaluator_config: ReplicaConfig | None = None
    package_uris: tuple[Text, ...] = Field(default=(), max_length=MAX_PACKAGES)
    python_module: Text | None = None
    args: tuple[Text, ...] = ()
    hyperparameters: HyperparameterSpec | None = None
    region: Text | None = None
    job_dir: Text | None = None
    runtime_version: Text | None = None
    python_version: Text | None = None
    encryption_config: EncryptionConfig | None = None
    scheduling: Scheduling = Field(default_factory=Scheduling)
    network: Text | None = None
    service_account: Text | None = None
    use_chief_in_tf_config: Flag = False
    enable_web_access: Flag = False
    lockstep: LockstepExtensions = Field(default_factory=LockstepExtensions)

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations([*_machine_violations(self), *_program_violations(self), *_tuning_violations(self)])
        return self

    def redacted(self) -> TrainingInput:
        """Returns the input as readers of the job may see it: only the scheme and host of its webhooks' URLs."""
        hooks = tuple(hook.redacted() for hook in self.lockstep.webhooks)
        return self.model_copy(update={"lockstep": self.lockstep.model_copy(update={"webhooks": hooks})})

    def replica_configs(self) -> Iterator[tuple[str, ReplicaConfig]]:
        """Yields the replica configurations that are given, each with its key in the document."""
        for key, config in (
            ("masterConfig", self.master_config),
            ("workerConfig", self.worker_config),
            ("parameterServerConfig", self.parameter_server_config),
            ("evaluatorConfig", self.evaluator_config),
        ):
            if config is not None:
                yield key, config


def running_python_version() -> str:
    """Returns the version of the Python that programs run on, in the contract's form: "3.11"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def unsupported(training_input: TrainingInput) -> list[str]:
    """Lists what a job asks for and this version cannot honour, each with the reason; the caller rejects the job.

    Args:
        training_input: the training input of the job.

    Returns:
        Lines such as ``"trainingInput.encryptionConfig: buckets keep their own encryption; remove it"``.
    """
    runs = running_python_version()
    asked = training_input
    python_version = asked.python_version if asked.python_version != runs else None
    found: list[tuple[str, object, str]] = [
        ("encryptionConfig", asked.encryption_config, "buckets keep their own encryption"),
        ("network", asked.network, "network peering is not supported"),
        ("serviceAccount", asked.service_account, "service accounts are not supported"),
        ("pythonVersion", python_version, f"programs run on Python {runs}, not {asked.python_version}"),
    ]
    for key, config in asked.replica_configs():
        found += [
            (f"{key}.tpuTfVersion", config.tpu_tf_version, "programs run on JAX, not TensorFlow"),
            (f"{key}.diskConfig", config.disk_config, "boot disks cannot be configured"),
        ]
    return [f"trainingInput.{key}: {reason}; remove it" for key, value, reason in found if value]


def ignored(training_input: TrainingInput) -> list[str]:
    """Lists what a job asks for and this version ignores, each with the reason; the caller shows it and continues.

    Args:
        training_input: the training input of the job.

    Returns:
        Lines such as ``"trainingInput.runtimeVersion: 2.4 is ignored; ..."``.
    """
    version = training_input.runtime_version
    reason = "there is one runtime, the environment that Lockstep runs in"
    return [] if version is None else [f"trainingInput.runtimeVersion: {version} is ignored; {reason}"]


def with_reader_names(line: str, *, names: Mapping[str, str]) -> str:
    """Returns a line of `unsupported` or `ignored`, or a field's name, with the name that the reader knows it by.

    Args:
        line: a field's name, alone or followed by ": " and more text.
        names: the readers' names of fields, by their names in the training input.
    """
    field, separator, rest = line.partition(": ")
    return f"{names.get(field, field)}{separator}{rest}"


def _scheduling_violations(scheduling: Scheduling) -> Iterator[Violation]:
    if not 0 <= scheduling.priority <= 1000:
        yield Violation(path=("priority",), received=scheduling.priority, allowed="0 to 1000")
    if scheduling.max_wait_time_s is not None and scheduling.max_wait_time_s < MIN_WAIT_TIME_S:
        yield Violation(path=("maxWaitTime",), received=scheduling.max_wait_time, allowed="1800s or more")
    if scheduling.max_running_time_s <= 0:
        yield Violation(path=("maxRunningTime",), received=scheduling.max_running_time, allowed="more than 0s")


def _machine_violations(asked: TrainingInput) -> Iterator[Violation]:
    counts = (
        ("worker", asked.worker_count, asked.worker_type),
        ("parameterServer", asked.parameter_server_count, asked.parameter_server_type),
        ("evaluator", asked.evaluator_count, asked.evaluator_type),
    )
    if asked.scale_tier is ScaleTier.CUSTOM:
        if asked.master_type is None:
            yield Violation(path=("masterType",), allowed="a machine type, since scaleTier is CUSTOM")
        for name, count, machine_type in counts:
            if count and machine_type is None:
                yield Violation(path=(f"{name}Type",), allowed=f"a machine type, since {name}Count is {count}")
        return
    only = f"only with scaleTier CUSTOM, not {asked.scale_tier}"
    if asked.master_type is not None:
        yield Violation(path=("masterType",), received=asked.master_type, allowed=only)
    for name, count, machine_type in counts:
        if count:
            yield Violation(path=(f"{name}Count",), received=count, allowed=only)
        if machine_type is not None:
            yield Violation(path=(f"{name}Type",), received=machine_type, allowed=only)
    for key, config in asked.replica_configs():
        if config.accelerator_config is not None:
            received = config.accelerator_config.to_json()
            yield Violation(path=(key, "acceleratorConfig"), received=received, allowed=only)


def _program_violations(asked: TrainingInput) -> Iterator[Violation]:
    base = asked.lockstep.base_output_directory
    if base is not None and asked.job_dir is not None:
        yield Violation(path=("lockstep", "baseOutputDirectory"), received=base, allowed="not together with jobDir")
    master_image = asked.master_config.image_uri if asked.master_config else None
    if master_image is not None and asked.runtime_version is not None:
        yield Violation(path=("runtimeVersion",), received=asked.runtime_version, allowed="not with an imageUri")
    environment = asked.lockstep.environment
    for name, wanted in (("requirements", environment.requirements), ("project", environment.project)):
        if wanted and master_image is not None:
            allowed = "not with an imageUri: an image brings its own packages"
            yield Violation(path=("lockstep", "environment", name), received=wanted, allowed=allowed)
    for key, config in asked.replica_configs():
        for name, value in (("containerCommand", config.container_command), ("containerArgs", config.container_args)):
            if value and config.image_uri is None and master_image is None:
                yield Violation(path=(key, name), received=list(value), allowed="only with an imageUri")
            if value and asked.args:
                yield Violation(path=(key, name), received=list(value), allowed="not together with args")
            elif value and asked.python_module is not None:
                yield Violation(path=(key, name), received=list(value), allowed="not together with pythonModule")


def _tuning_violations(asked: TrainingInput) -> Iterator[Violation]:
    spec, options = asked.hyperparameters, asked.lockstep.tuning
    if spec is None and options.to_json():
        yield Violation(path=("lockstep", "tuning"), received=options.to_json(), allowed="only with hyperparameters")
    if spec is not None and options.early_stopping is not None and not spec.enable_trial_early_stopping:
        yield Violation(
            path=("lockstep", "tuning", "earlyStopping"),
            received=str(options.early_stopping),
            allowed="only with hyperparameters.enableTrialEarlyStopping: true",
        )
