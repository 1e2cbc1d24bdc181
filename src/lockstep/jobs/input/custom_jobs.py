"""Defines custom jobs, the form of a job in Vertex AI, the successor of AI Platform.

The documents follow the public discovery document ``aiplatform.v1.json`` and keep its names.
`lockstep.jobs.input.custom_job_translation` translates a `CustomJob` into a training input. `unsupported_fields` yields
the fields that have no counterpart there, or that this version cannot honour, by their names in this form.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final, Literal, Self, cast, final

from pydantic import BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from lockstep.jobs.input.spec import MAX_PACKAGES, AcceleratorType, DiskConfig, EncryptionConfig
from lockstep.jobs.parsing.fields import (
    AbstractDocument,
    Duration,
    Flag,
    Int32,
    Int64,
    Labels,
    Text,
    check_variables,
    rule_error,
)
from lockstep.jobs.parsing.rules import Violation, raise_violations

MAX_POOLS: Final = 4

ACCELERATORS: Final[Mapping[str, AcceleratorType]] = {
    **{kind.value: kind for kind in AcceleratorType},
    "TPU_V5_LITEPOD": AcceleratorType.TPU_V5E,
}
"""Accelerator types by Vertex AI's name, and by the catalogue's current name."""

MACHINE_TYPES: Final[Mapping[str, str]] = {"cloud-tpu": "cloud_tpu"}
"""The contract's names of the machine types that have another name here."""

UNSPECIFIED: Final = "ACCELERATOR_TYPE_UNSPECIFIED"

_NO_EXPERIMENTS: Final = "experiments are not supported"
_NO_NETWORK: Final = "network peering is not supported"
_NO_MOUNTS: Final = "this version mounts no file systems"
_TOPOLOGY: Final = re.compile(r"[1-9][0-9]{0,4}(x[1-9][0-9]{0,4}){1,2}")
_NUM_CHIPS: Final = re.compile(r"-([0-9]+)t$")


@final
class EnvVar(AbstractDocument):
    """An environment variable.

    Attributes:
        name: the variable's name.
        value: the variable's value, used literally: ``$(NAME)`` is not expanded.
    """

    name: Text
    value: Text

    @model_validator(mode="after")
    def _check(self) -> Self:
        if "$(" in self.value:
            violation = Violation(path=("value",), received=self.value, allowed='text without "$(": it is not expanded')
            raise_violations([violation])
        return self


@final
class MachineSpec(AbstractDocument):
    """The machine of each replica of a pool.

    Attributes:
        machine_type: the name of the machine type.
        accelerator_type: the name of the accelerators' type.
        accelerator_count: the number of accelerators.
        tpu_topology: the arrangement of a TPU machine's chips, such as "2x2".
        gpu_partition_size: the size of a part of a GPU, if the GPUs are to be partitioned.
        reservation_affinity: the reserved machines to use.
    """

    machine_type: Text
    accelerator_type: Text | None = None
    accelerator_count: Int32 = Field(default=0, ge=0)
    tpu_topology: Text | None = None
    gpu_partition_size: Text | None = None
    reservation_affinity: object = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations(_machine_violations(self))
        return self

    @property
    def accelerator(self) -> AcceleratorType | None:
        """The type of the accelerators; None if there are none."""
        return None if self.accelerator_type is None else ACCELERATORS.get(self.accelerator_type)


@final
class ContainerSpec(AbstractDocument):
    """The container that each replica of a pool runs.

    Attributes:
        image_uri: the container image.
        command: the command that replaces the image's entry point.
        args: the arguments of the entry point.
        env: the container's environment variables.
    """

    image_uri: Text
    command: tuple[Text, ...] = ()
    args: tuple[Text, ...] = ()
    env: tuple[EnvVar, ...] = ()


@final
class PythonPackageSpec(AbstractDocument):
    """The Python program that each replica of a pool runs.

    Attributes:
        executor_image_uri: the container image that the program runs in.
        package_uris: the bucket URLs of the program's packages.
        python_module: the module to run.
        args: the program's arguments.
        env: the program's environment variables.
    """

    executor_image_uri: Text | None = None
    package_uris: tuple[Text, ...] = Field(default=(), max_length=MAX_PACKAGES)
    python_module: Text
    args: tuple[Text, ...] = ()
    env: tuple[EnvVar, ...] = ()


@final
class WorkerPoolSpec(AbstractDocument):
    """A pool of equal replicas.

    Attributes:
        machine_spec: the machine of each replica.
        replica_count: the number of replicas; one by default.
        container_spec: the container that the replicas run.
        python_package_spec: the Python program that the replicas run.
        disk_spec: the boot disk of each replica.
        nfs_mounts: the NFS folders to mount.
        lustre_mounts: the Lustre folders to mount.
    """

    machine_spec: MachineSpec | None = None
    replica_count: Int64 | None = Field(default=None, ge=0)
    container_spec: ContainerSpec | None = None
    python_package_spec: PythonPackageSpec | None = None
    disk_spec: DiskConfig | None = None
    nfs_mounts: tuple[object, ...] = ()
    lustre_mounts: tuple[object, ...] = ()

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations(_pool_violations(self))
        return self

    @property
    def num_replicas(self) -> int:
        """The number of replicas; 0 for a pool that an empty value leaves out."""
        if self.replica_count is not None:
            return self.replica_count
        return 1 if self.machine_spec or self.container_spec or self.python_package_spec else 0

    @property
    def env(self) -> dict[str, str]:
        """The environment variables of the pool's program."""
        task = self.container_spec or self.python_package_spec
        return {} if task is None else {variable.name: variable.value for variable in task.env}


@final
class CustomJobScheduling(AbstractDocument):
    """When a job runs, and for how long at most.

    Attributes:
        timeout: the maximum time in RUNNING.
        restart_job_on_worker_restart: whether the whole job restarts after the loss of a worker even if it has
            parameter servers. Without parameter servers it always does.
        disable_retries: whether the job is never restarted.
        strategy: the kind of machines to wait for.
        max_wait_duration: the maximum time before RUNNING; 0s means no limit.
    """

    timeout: Duration | None = None
    restart_job_on_worker_restart: Flag = False
    disable_retries: Flag = False
    strategy: Literal["STRATEGY_UNSPECIFIED", "ON_DEMAND", "STANDARD", "LOW_COST", "SPOT", "FLEX_START"] = "STANDARD"
    max_wait_duration: Duration | None = None


@final
class GcsDestination(AbstractDocument):
    """A folder of a bucket.

    Attributes:
        output_uri_prefix: the folder's URL.
    """

    output_uri_prefix: Text


def _one_or_several(value: object) -> object:
    # The public examples of `gcloud ai custom-jobs create --config` write a single pool without a list.
    return [cast("object", value)] if isinstance(value, dict) else value


@final
class CustomJobSpec(AbstractDocument):
    """What to run, and on which machines (``GoogleCloudAiplatformV1CustomJobSpec``).

    Attributes:
        worker_pool_specs: the master, the workers, the parameter servers and the evaluators, in this order; {} leaves a
            pool out.
        scheduling: when the job runs, and for how long at most.
        base_output_directory: the folder for the job's results.
        service_account: the account to run as.
        network: the network to peer with.
        reserved_ip_ranges: the reserved address ranges in that network.
        psc_interface_config: the configuration of a Private Service Connect interface, another way into that network.
        enable_web_access: whether to open interactive shells.
        enable_dashboard_access: whether to give access to the program's own dashboard.
        tensorboard: the managed TensorBoard that shows the job's event files.
        experiment: the experiment that the job belongs to.
        experiment_run: the run of that experiment.
        models: the models whose locations the program receives.
        persistent_resource_id: the machines to use, which are kept between jobs.
        protected_artifact_location_id: the location of protected artifacts.
    """

    worker_pool_specs: Annotated[tuple[WorkerPoolSpec, ...], BeforeValidator(_one_or_several)] = Field(
        max_length=MAX_POOLS
    )
    scheduling: CustomJobScheduling = Field(default_factory=CustomJobScheduling)
    base_output_directory: GcsDestination | None = None
    service_account: Text | None = None
    network: Text | None = None
    reserved_ip_ranges: tuple[Text, ...] = ()
    psc_interface_config: object = None
    enable_web_access: Flag = False
    enable_dashboard_access: Flag = False
    tensorboard: Text | None = None
    experiment: Text | None = None
    experiment_run: Text | None = None
    models: tuple[Text, ...] = ()
    persistent_resource_id: Text | None = None
    protected_artifact_location_id: Text | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        raise_violations(_spec_violations(self))
        return self


def check_display_name(value: object) -> object:
    """Returns a display name unchanged if a job's name can be made of it.

    Raises:
        PydanticCustomError: If none can.
    """
    if not isinstance(value, str) or not job_id_of(value):
        raise rule_error(allowed="1 to 128 characters that begin with a letter: it becomes the job's name")
    return value


def job_id_of(display_name: str) -> str:
    """Returns a display name as a job name, with "_" for each invalid character; "" if no valid name results."""
    name = re.sub(r"[^a-zA-Z0-9_]", "_", display_name)
    return name if len(name) <= 128 and name[:1].isalpha() else ""


@final
class CustomJob(AbstractDocument):
    """The CustomJob message, as a client may send it.

    Fields that only the service sets are accepted and ignored, as in a Job of the contract.

    Attributes:
        display_name: the job's name.
        job_spec: what to run.
        labels: the job's labels.
        encryption_spec: a customer-managed key.
    """

    display_name: Annotated[str, BeforeValidator(check_display_name)]
    job_spec: CustomJobSpec
    labels: Labels = Field(default_factory=dict)
    encryption_spec: EncryptionConfig | None = None
    name: object = None
    state: object = None
    create_time: object = None
    start_time: object = None
    end_time: object = None
    update_time: object = None
    error: object = None
    web_access_uris: object = None
    satisfies_pzi: object = None
    satisfies_pzs: object = None


def _machine_violations(machine: MachineSpec) -> Iterator[Violation]:
    named = machine.accelerator_type not in (None, UNSPECIFIED)
    if named and machine.accelerator is None:
        yield Violation(
            path=("acceleratorType",), received=machine.accelerator_type, allowed=", ".join(sorted(ACCELERATORS))
        )
    if named and not machine.accelerator_count:
        yield Violation(path=("acceleratorCount",), allowed="1 or more, since acceleratorType is given")
    if machine.accelerator_count and not named:
        yield Violation(path=("acceleratorType",), allowed="an accelerator's name, since acceleratorCount is given")
    if machine.tpu_topology is not None and not _TOPOLOGY.fullmatch(machine.tpu_topology):
        yield Violation(path=("tpuTopology",), received=machine.tpu_topology, allowed="such as 2x2 or 2x2x1")


def _pool_violations(pool: WorkerPoolSpec) -> Iterator[Violation]:
    if not pool.num_replicas:
        return
    if pool.machine_spec is None:
        yield Violation(path=("machineSpec",), allowed="the machine of its replicas")
    if (pool.container_spec is None) is (pool.python_package_spec is None):
        both = None if pool.container_spec is None else "both"
        yield Violation(path=("containerSpec",), received=both, allowed="either containerSpec or pythonPackageSpec")
    for key, task in (("containerSpec", pool.container_spec), ("pythonPackageSpec", pool.python_package_spec)):
        names = [] if task is None else [variable.name for variable in task.env]
        if len(set(names)) < len(names):
            yield Violation(path=(key, "env"), received=names, allowed="each name once")
        try:
            check_variables(dict.fromkeys(names))
        except PydanticCustomError as error:
            yield Violation(path=(key, "env"), received=names, allowed=error.message().removeprefix("allowed: "))


def _spec_violations(spec: CustomJobSpec) -> Iterator[Violation]:
    if not spec.worker_pool_specs:
        yield Violation(path=("workerPoolSpecs",), received=[], allowed=f"1 to {MAX_POOLS} pools")
        return
    first = spec.worker_pool_specs[0]
    if first.num_replicas != 1:
        received = first.num_replicas
        yield Violation(path=("workerPoolSpecs", 0, "replicaCount"), received=received, allowed="1, the chief")
        return
    chiefs = first.python_package_spec
    for index, pool in enumerate(spec.worker_pool_specs):
        task = pool.python_package_spec
        if not pool.num_replicas:
            continue
        path = ("workerPoolSpecs", index, "pythonPackageSpec")
        if (task is None) is not (chiefs is None):
            yield Violation(path=path, received="beside containers", allowed="programs only, or containers only")
        elif task is not None and chiefs is not None and _program(task) != _program(chiefs):
            same = "the same pythonModule, packageUris and args in all pools: a job has one program"
            yield Violation(path=path, received=task.to_json(), allowed=same)


def _program(task: PythonPackageSpec) -> tuple[object, ...]:
    return task.python_module, task.package_uris, task.args


def unsupported_fields(spec: CustomJobSpec) -> Iterator[tuple[str, str]]:
    """Yields each field that has no counterpart in a training input and cannot be honoured.

    Yields:
        The path of the field in the spec, and the reason.
    """
    scheduling = spec.scheduling
    spot = scheduling.strategy in ("LOW_COST", "SPOT")
    asked: list[tuple[str, object, str]] = [
        ("reservedIpRanges", spec.reserved_ip_ranges, _NO_NETWORK),
        ("pscInterfaceConfig", spec.psc_interface_config, _NO_NETWORK),
        ("enableDashboardAccess", spec.enable_dashboard_access, "this version opens no dashboards of programs"),
        ("tensorboard", spec.tensorboard, "event files stay in the bucket, where any TensorBoard reads them"),
        ("experiment", spec.experiment, _NO_EXPERIMENTS),
        ("experimentRun", spec.experiment_run, _NO_EXPERIMENTS),
        ("models", spec.models, "a program finds its models by their URLs"),
        ("persistentResourceId", spec.persistent_resource_id, "nodes cannot be kept between jobs"),
        ("protectedArtifactLocationId", spec.protected_artifact_location_id, "buckets keep their own protection"),
        ("scheduling.strategy", spot, f"spot machines cannot be requested per job ({scheduling.strategy})"),
    ]
    for index, pool in enumerate(spec.worker_pool_specs):
        path, machine = f"workerPoolSpecs[{index}]", pool.machine_spec
        asked += [
            (f"{path}.nfsMounts", pool.nfs_mounts, _NO_MOUNTS),
            (f"{path}.lustreMounts", pool.lustre_mounts, _NO_MOUNTS),
        ]
        if machine is not None:
            asked += [
                (
                    f"{path}.machineSpec.tpuTopology",
                    _has_foreign_topology(machine),
                    "a TPU slice is one machine in this version",
                ),
                (f"{path}.machineSpec.gpuPartitionSize", machine.gpu_partition_size, "GPUs cannot be partitioned"),
                (f"{path}.machineSpec.reservationAffinity", machine.reservation_affinity, "no machines are reserved"),
            ]
    return ((path, reason) for path, value, reason in asked if value)


def _has_foreign_topology(machine: MachineSpec) -> bool:
    """Returns whether a machine's TPU topology has another number of chips than the machine itself."""
    chips = _NUM_CHIPS.search(machine.machine_type)
    if machine.tpu_topology is None:
        return False
    return chips is None or math.prod(int(part) for part in machine.tpu_topology.split("x")) != int(chips[1])
