"""Resolves a training input into a gang: every replica by name, with its machine and its program."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, final

from lockstep.errors import ConfigError
from lockstep.jobs.input.spec import AcceleratorConfig, ReplicaConfig, ScaleTier, TrainingInput
from lockstep.jobs.machines.catalogue import Catalogue, Category, Role, TierMember

MAX_REPLICAS: Final = 1000
"""The maximum number of replicas of one job."""

MAX_ORDERED_BYTES: Final = 64 * 1024 * 1024
"""The maximum size of a training input as JSON, in bytes, times the number of its replicas."""


@final
@dataclass(frozen=True, kw_only=True)
class Replica:
    """One member of a job: one program on one machine.

    Attributes:
        role: the replica's role: master, worker, ps or evaluator.
        index: the position within the role, from 0.
        tf_role: the role in ``TF_CONFIG``, which calls the master "chief" if the job asks for it.
        machine_type: the name of the machine type.
        accelerator: the accelerators, including those that are built into the machine type.
        python_module: the module to run; None if a container defines what runs.
        args: the program's arguments, followed by ``--job-dir`` if the job has one.
        package_uris: the bucket URLs of the program's packages.
        image_uri: the container image of the replica's role, or else the master's.
        container_command: the command that replaces the image's entry point.
        container_args: the arguments of the entry point.
        env: the program's environment variables, by name.
    """

    role: Role
    index: int
    tf_role: str
    machine_type: str
    accelerator: AcceleratorConfig | None = None
    python_module: str | None = None
    args: tuple[str, ...] = ()
    package_uris: tuple[str, ...] = ()
    image_uri: str | None = None
    container_command: tuple[str, ...] = ()
    container_args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """The replica's name within the job, such as ``worker-replica-1``."""
        return f"{self.role}-replica-{self.index}"


@final
@dataclass(frozen=True, kw_only=True)
class Gang:
    """The replicas of a job, which are placed as a whole or not at all.

    Attributes:
        replicas: the master, then the workers, the parameter servers and the evaluators, each ordered by index.
    """

    replicas: tuple[Replica, ...]

    def __iter__(self) -> Iterator[Replica]:
        return iter(self.replicas)

    def __len__(self) -> int:
        return len(self.replicas)

    def describe(self) -> str:
        """Describes the gang, as in "1 master (n1-standard-8 + 2 x NVIDIA_TESLA_V100), 4 worker (n1-standard-4)"."""
        counts: dict[str, int] = {}
        machines: dict[str, str] = {}
        for replica in self.replicas:
            counts[replica.role] = counts.get(replica.role, 0) + 1
            machines[replica.role] = describe_machine(replica.machine_type, accelerator=replica.accelerator)
        return ", ".join(f"{count} {role} ({machines[role]})" for role, count in counts.items())


def describe_machine(machine_type: str, *, accelerator: AcceleratorConfig | None) -> str:
    """Describes a machine, as in "n1-standard-8 + 2 x NVIDIA_TESLA_V100"."""
    return machine_type if accelerator is None else f"{machine_type} + {accelerator.count} x {accelerator.type}"


def resolve(training_input: TrainingInput, *, catalogue: Catalogue) -> Gang:
    """Expands a training input into its replicas.

    Args:
        training_input: the training input of the job.
        catalogue: the available machines.

    Raises:
        ConfigError: If the catalogue does not have a machine type, an accelerator or a region of the job, if a machine
            type does not support a number of accelerators, if the job mixes legacy and Compute Engine machine types, or
            if it has more than `MAX_REPLICAS` replicas.
    """
    catalogue.price_region(training_input.region, what="trainingInput.region")
    members = list(_members(training_input, catalogue))
    num_replicas = sum(member.count for _, member, _ in members)
    if num_replicas > MAX_REPLICAS:
        raise ConfigError(
            "trainingInput: too many replicas", received=num_replicas, allowed=f"at most {MAX_REPLICAS} in all"
        )
    _check_categories(training_input, catalogue)
    return Gang(
        replicas=tuple(
            _replica(training_input, role=role, index=index, member=member, config=config)
            for role, member, config in members
            for index in range(member.count)
        )
    )


def check_size(training_input: TrainingInput, *, gang: Gang) -> None:
    """Rejects a job whose training input, which each replica receives, is too large for its number of replicas.

    Args:
        training_input: the training input of the job.
        gang: the job's replicas.

    Raises:
        ConfigError: If the size of the training input as JSON, times the number of replicas, exceeds
            `MAX_ORDERED_BYTES`.
    """
    size_bytes = len(json.dumps(training_input.to_json()))
    if size_bytes * len(gang) > MAX_ORDERED_BYTES:
        raise ConfigError(
            f"trainingInput: too large for {len(gang)} replicas, because each replica receives a copy",
            received=f"{size_bytes:,} bytes",
            allowed=f"at most {MAX_ORDERED_BYTES // len(gang):,}; put larger data in the program's package",
        )


_Member = tuple[Role, TierMember, ReplicaConfig]


def _custom(asked: TrainingInput) -> Iterator[tuple[Role, str, str | None, int, ReplicaConfig]]:
    """Yields each role with its key in the document, its machine type, its count and its configuration."""
    nothing = ReplicaConfig()
    yield "master", "master", asked.master_type, 1, asked.master_config or nothing
    yield "worker", "worker", asked.worker_type, asked.worker_count, asked.worker_config or nothing
    servers = asked.parameter_server_config or nothing
    yield "ps", "parameterServer", asked.parameter_server_type, asked.parameter_server_count, servers
    yield "evaluator", "evaluator", asked.evaluator_type, asked.evaluator_count, asked.evaluator_config or nothing


def _members(asked: TrainingInput, catalogue: Catalogue) -> Iterator[_Member]:
    if asked.scale_tier is not ScaleTier.CUSTOM:
        tier = catalogue.scale_tiers[asked.scale_tier]
        for role, _, _, _, config in _custom(asked):
            if role in tier:
                yield role, tier[role], config
        return
    for role, key, machine_type, count, config in _custom(asked):
        if machine_type is None:
            continue
        accelerator = _accelerator(key, machine_type, config.accelerator_config, catalogue)
        if count:
            yield role, TierMember(machine_type=machine_type, count=count, accelerator=accelerator), config


def _accelerator(
    key: str, machine_type: str, asked: AcceleratorConfig | None, catalogue: Catalogue
) -> AcceleratorConfig | None:
    machine = catalogue.machine_type(machine_type, what=f"trainingInput.{key}Type")
    built_in = machine.built_in
    if asked is None or asked == built_in:
        return built_in
    what = f"trainingInput.{key}Config.acceleratorConfig"
    received = f"{asked.count} x {asked.type}"
    if built_in is not None:
        raise ConfigError(
            what,
            received=received,
            allowed=f"{built_in.count} x {built_in.type}, which come with {machine_type}, or nothing",
        )
    if machine.category is Category.LEGACY:
        raise ConfigError(what, received=received, allowed=f"nothing, since {machine_type} is a legacy machine type")
    if machine.category is Category.TPU and not asked.type.startswith("TPU"):
        raise ConfigError(what, received=received, allowed=f"TPUs, since the machine type is {machine_type}")
    entry = catalogue.accelerators.get(asked.type)
    counts = () if entry is None else entry.counts
    if asked.count not in counts:
        allowed = ", ".join(str(count) for count in counts) or "no such accelerators in this catalogue"
        raise ConfigError(f"{what}.count", received=asked.count, allowed=f"{allowed} of {asked.type}")
    return asked


def _check_categories(asked: TrainingInput, catalogue: Catalogue) -> None:
    """Rejects a mix of legacy and Compute Engine machine types, as the contract does."""
    kinds: dict[Category, str] = {}
    for _, key, machine_type, count, _ in _custom(asked):
        if machine_type is None or not count:
            continue
        category = catalogue.machine_type(machine_type, what=f"trainingInput.{key}Type").category
        other = next((kind for kind in kinds if Category.TPU not in (kind, category) and kind is not category), None)
        if other is not None:
            allowed = f"a machine type of the kind of {kinds[other]}: Compute Engine and legacy types do not mix"
            raise ConfigError(f"trainingInput.{key}Type", received=machine_type, allowed=allowed)
        kinds.setdefault(category, machine_type)


def _replica(asked: TrainingInput, *, role: Role, index: int, member: TierMember, config: ReplicaConfig) -> Replica:
    master = asked.master_config or ReplicaConfig()
    job_dir = () if asked.job_dir is None else ("--job-dir", asked.job_dir)
    return Replica(
        role=role,
        index=index,
        tf_role="chief" if role == "master" and asked.use_chief_in_tf_config else role,
        machine_type=member.machine_type,
        accelerator=member.accelerator,
        python_module=asked.python_module,
        args=(*asked.args, *job_dir),
        package_uris=asked.package_uris,
        image_uri=config.image_uri or master.image_uri,
        container_command=config.container_command,
        container_args=config.container_args,
        env=asked.lockstep.env.get(role, {}),
    )
