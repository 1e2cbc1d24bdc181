"""`Topology`, and the environment variables that it is written to and read from.

Variables that are read and written:

- ``TF_CONFIG``: ``{"cluster": {role: ["host:port", ...]}, "task": {"type", "index", "trial"}, "job", "environment"}``,
  as AI Platform Training v1 and ``tf.distribute`` define it. An evaluator is never in ``cluster``.
- ``CLUSTER_SPEC``: the same document, for custom containers.
- ``AIP_MODEL_DIR``, ``AIP_CHECKPOINT_DIR``, ``AIP_TENSORBOARD_LOG_DIR``: the bucket URLs of a job's outputs, with
Vertex
  AI's names.
- ``LOCKSTEP_ACCELERATORS``: ``{"count", "type", "simulated"}`` of this replica.
- ``LOCKSTEP_CLUSTER_TOKEN``: the secret that the processes of a cluster with parameter servers prove to each other that
  they know. It is not part of a `Topology`, which is not secret.

If these variables name no cluster, the variables of `lockstep.topology.launchers` are read.
"""

from __future__ import annotations

import ipaddress
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, cast, final

from lockstep.errors import ConfigError, closest
from lockstep.topology.addresses import ALLOWED, advice, is_address
from lockstep.topology.launchers import Place, find_place, from_jax, from_torchrun, require_same

CHIEF_ROLES: Final = ("chief", "master")
ROLES: Final = (*CHIEF_ROLES, "worker", "ps", "evaluator")

TF_CONFIG: Final = "TF_CONFIG"
CLUSTER_SPEC: Final = "CLUSTER_SPEC"
MODEL_DIR: Final = "AIP_MODEL_DIR"
CHECKPOINT_DIR: Final = "AIP_CHECKPOINT_DIR"
TENSORBOARD_DIR: Final = "AIP_TENSORBOARD_LOG_DIR"
ACCELERATORS: Final = "LOCKSTEP_ACCELERATORS"
CLUSTER_TOKEN: Final = "LOCKSTEP_CLUSTER_TOKEN"  # noqa: S105 - the variable's name


@final
@dataclass(frozen=True, kw_only=True)
class Task:
    """The place of this process in the job.

    Attributes:
        role: the role of the process, one of `ROLES`.
        index: the index within the role, from 0.
        trial: the trial of a tuning job; "" outside a tuning job.
    """

    role: str = "chief"
    index: int = 0
    trial: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Outputs:
    """The bucket URLs for a job's results; None for URLs that are not set."""

    model_dir: str | None = None
    checkpoint_dir: str | None = None
    tensorboard_dir: str | None = None


@final
@dataclass(frozen=True, kw_only=True)
class Accelerators:
    """The accelerators of this replica.

    Attributes:
        count: the number of accelerators.
        type: the contract's name of the accelerator, such as ``NVIDIA_TESLA_V100``.
        simulated: whether virtual CPU devices stand in for them.
    """

    count: int
    type: str
    simulated: bool = False

    def describe(self) -> str:
        """Returns a description: "2 x NVIDIA_TESLA_V100 (simulated)"."""
        return f"{self.count} x {self.type}" + (" (simulated)" if self.simulated else "")


def virtual_devices_env(num_devices: int) -> dict[str, str]:
    """Returns the variables that give a process virtual CPU devices. They must be set before JAX starts.

    ``NPROC`` sets the size of XLA's thread pool. Its collectives wait for each other on one thread for each device and
    each step in flight. If there are no more threads than devices, they can wait forever.

    Args:
        num_devices: the number of virtual devices of the process.
    """
    return {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(num_devices),
        "NPROC": str(max(2 * num_devices, os.cpu_count() or 1)),
    }


@final
class ClusterSpec(dict[str, list[str]]):
    """The addresses by role, with the read methods of ``tf.train.ClusterSpec``."""

    @property
    def jobs(self) -> list[str]:
        """The names of the cluster's roles."""
        return list(self)

    def as_dict(self) -> dict[str, list[str]]:
        """Returns the addresses by role, as a plain dict."""
        return dict(self)

    def num_tasks(self, job_name: str) -> int:
        """Returns the number of tasks of a role; 0 if the cluster does not have the role."""
        return len(self.get(job_name, ()))

    def job_tasks(self, job_name: str) -> list[str]:
        """Returns the addresses of a role; empty if the cluster does not have the role."""
        return list(self.get(job_name, ()))


def _check_distinct(cluster: Mapping[str, tuple[str, ...]]) -> None:
    """Raises a ConfigError if two processes of a cluster have the same address."""
    owners: dict[str, str] = {}
    for role, addresses in cluster.items():
        for index, address in enumerate(addresses):
            other = owners.setdefault(address, f"{role} {index}")
            if address and other != f"{role} {index}":
                raise ConfigError(
                    f"cluster: {other} and {role} {index} have the same address",
                    received=address,
                    allowed="a distinct address for each process",
                )


@final
@dataclass(frozen=True, kw_only=True)
class Topology:
    """The job as one of its processes sees it.

    Attributes:
        cluster: the addresses ("host:port") by role, in the order of their indices. Empty for a job of one process. An
            address that is not known before the processes meet is ""; the first process's address is always known.
        task: this process's place in the job.
        job: the name of the job; "" outside a job.
        managed: whether a job service started this process (``"environment": "cloud"``).
        outputs: the bucket URLs for the job's results.
        accelerators: the accelerators of this replica; None if they are not known.

    Raises:
        ConfigError: the cluster and the task contradict each other.
    """

    cluster: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    task: Task = Task()
    job: str = ""
    managed: bool = False
    outputs: Outputs = Outputs()
    accelerators: Accelerators | None = None

    def __post_init__(self) -> None:
        for role, addresses in self.cluster.items():
            if role not in ROLES or role == "evaluator":
                raise ConfigError(
                    "unknown role in cluster",
                    received=role,
                    allowed=[name for name in ROLES if name != "evaluator"],
                    action="leave it out: nobody connects to an evaluator"
                    if role == "evaluator"
                    else closest(role, ROLES),
                )
            for address in addresses:
                if address and not is_address(address):
                    raise ConfigError(f"cluster.{role}", received=address, allowed=ALLOWED, action=advice(address))
        if all(role in self.cluster for role in CHIEF_ROLES):
            raise ConfigError("cluster has both chief and master", allowed="one of them")
        _check_distinct(self.cluster)
        if self.task.role not in ROLES:
            raise ConfigError(
                "task.type", received=self.task.role, allowed=ROLES, action=closest(self.task.role, ROLES)
            )
        if self.task.index < 0:
            raise ConfigError("task.index", received=self.task.index, allowed="0 or more")
        if self.num_processes > 1 and not self.synchronous_addresses[0]:
            raise ConfigError("the first process has no address", allowed="host:port")
        if self.task.role == "evaluator":
            return
        num_peers = len(self.cluster.get(self.task.role, ()))
        if self.cluster and self.task.index >= num_peers:
            raise ConfigError(
                f"task {self.task.role} {self.task.index} is not in cluster",
                received=f"{num_peers} addresses for {self.task.role}",
                allowed=f"an index below {num_peers}" if num_peers else f"a role of {sorted(self.cluster)}",
            )
        if not self.cluster and (self.task.index > 0 or self.task.role == "ps"):
            raise ConfigError(
                f"task {self.task.role} {self.task.index} is one of several, but no cluster is given",
                action='name them all: "cluster": {"worker": ["host:port", ...], ...}',
            )

    @property
    def synchronous_addresses(self) -> tuple[str, ...]:
        """The addresses of the processes that train in step: the chief (or master) first, then the workers."""
        chief = next((self.cluster[role] for role in CHIEF_ROLES if role in self.cluster), ())
        return (*chief, *self.cluster.get("worker", ()))

    @property
    def num_processes(self) -> int:
        """The number of processes that train in step; 1 without a cluster."""
        return max(1, len(self.synchronous_addresses))

    @property
    def process_id(self) -> int:
        """The rank of this process among those that train in step: 0 is the chief, or worker 0 if there is no chief.

        Without a cluster, it is 0.

        Raises:
            ConfigError: this process is a parameter server or an evaluator of a cluster, which have no rank.
        """
        if not self.cluster:
            return 0
        if self.task.role in CHIEF_ROLES:
            return self.task.index
        if self.task.role != "worker":
            raise ConfigError(
                f"a {self.task.role} has no rank among the synchronous processes", allowed="chief, worker"
            )
        return self.num_processes - len(self.cluster.get("worker", ())) + self.task.index

    @property
    def is_chief(self) -> bool:
        """Whether this process writes everything that is written once: checkpoints, models, summaries."""
        return self.task.role not in ("ps", "evaluator") and self.process_id == 0

    @property
    def task_type(self) -> str | None:
        """The role of the task; None without a cluster. Named as in ``tf.distribute``'s resolvers."""
        return self.task.role if self.cluster else None

    @property
    def task_id(self) -> int | None:
        """The index of the task; None without a cluster. Named as in ``tf.distribute``'s resolvers."""
        return self.task.index if self.cluster else None

    def cluster_spec(self) -> ClusterSpec:
        """Returns the addresses by role. Named as in ``tf.distribute``'s resolvers."""
        return ClusterSpec({role: list(addresses) for role, addresses in self.cluster.items()})

    @property
    def has_parameter_servers(self) -> bool:
        """Whether the job has parameter servers."""
        return bool(self.cluster.get("ps"))

    @property
    def is_on_loopback(self) -> bool:
        """Whether all addresses of the cluster are known, and can be reached only from this machine."""
        return all(_is_loopback(address) for addresses in self.cluster.values() for address in addresses)

    @property
    def coordinator_address(self) -> str | None:
        """The address of rank 0, where the processes meet; None for a job of one process."""
        return self.synchronous_addresses[0] if self.num_processes > 1 else None

    @classmethod
    def of_processes(cls, *, num_processes: int, process_id: int, coordinator_address: str) -> Self:
        """Returns the topology of a job of equal processes, of which only the first one's address is known.

        Args:
            num_processes: the number of processes.
            process_id: the number of this process, from 0. Process 0 is the chief.
            coordinator_address: the "host:port" at which process 0 listens.

        Raises:
            ConfigError: the numbers contradict each other, or the address is not valid.
        """
        addresses = (coordinator_address, *("",) * (num_processes - 1))
        place = Place(
            source="num_processes and process_id",
            num_processes=num_processes,
            process_id=process_id,
            addresses=addresses,
        )
        return cls.of_place(place)

    @classmethod
    def of_place(cls, place: Place) -> Self:
        """Returns the topology of a job as a launcher describes it.

        Args:
            place: this process's place in the job, read from the launcher's variables.
        """
        return cls._read(place.source, **_members(place))

    @classmethod
    def _read(cls, source: str, *, cluster: Mapping[str, tuple[str, ...]], task: Task) -> Self:
        """Returns the topology. Errors name the variables from which it was read."""
        try:
            return cls(cluster=cluster, task=task)
        except ConfigError as error:
            raise ConfigError(
                f"{source}: {error.what}", received=error.received, allowed=error.allowed, action=error.action
            ) from None

    @classmethod
    def from_env(cls, env: Mapping[str, str] | None = None) -> Self:
        """Reads the topology from environment variables. Without any of them, returns a job of one process.

        The variables are read in this order: ``TF_CONFIG``, ``CLUSTER_SPEC``, JAX's own, torchrun's, MPI's, Slurm's,
        Kubernetes's. The first source that names a cluster is used. The first four describe this very program, so if
        several of them are set, they must agree.

        Args:
            env: the environment variables; this process's own by default.

        Raises:
            ConfigError: a variable is not JSON, has a wrong type, contradicts itself or another one, or does not say
                which of several processes this one is.
        """
        variables = os.environ if env is None else env
        name = TF_CONFIG if variables.get(TF_CONFIG) else CLUSTER_SPEC
        document = _json_object(name, variables.get(name))
        cluster = {role: _addresses(name, role, value) for role, value in _member(name, document, "cluster").items()}
        task = _task(name, document, cluster)
        place = None if cluster else find_place(variables)
        if place is not None:
            topology = cls._read(place.source, **_members(place, trial=task.trial))
        else:
            topology = cls._read(name, cluster=cluster, task=task)
            _require_same_in_launchers(topology, name, variables)
        accelerators = _json_object(ACCELERATORS, variables.get(ACCELERATORS))
        return replace(
            topology,
            job=_job_name(document.get("job")),
            managed=document.get("environment") == "cloud",
            outputs=Outputs(
                model_dir=variables.get(MODEL_DIR) or None,
                checkpoint_dir=variables.get(CHECKPOINT_DIR) or None,
                tensorboard_dir=variables.get(TENSORBOARD_DIR) or None,
            ),
            accelerators=_accelerators(accelerators) if accelerators else None,
        )

    def to_env(self) -> dict[str, str]:
        """Returns the environment variables from which `from_env` reads an equal topology."""
        document: dict[str, object] = {}
        if self.cluster:
            document["cluster"] = {role: list(addresses) for role, addresses in self.cluster.items()}
        task: dict[str, object] = {"type": self.task.role, "index": self.task.index}
        if self.task.trial:
            task["trial"] = self.task.trial
        document["task"] = task
        if self.job:
            document["job"] = self.job
        if self.managed:
            document["environment"] = "cloud"
        text = json.dumps(document)
        env = {TF_CONFIG: text, CLUSTER_SPEC: text}
        for variable, url in (
            (MODEL_DIR, self.outputs.model_dir),
            (CHECKPOINT_DIR, self.outputs.checkpoint_dir),
            (TENSORBOARD_DIR, self.outputs.tensorboard_dir),
        ):
            if url is not None:
                env[variable] = url
        if self.accelerators is not None:
            env[ACCELERATORS] = json.dumps(
                {
                    "count": self.accelerators.count,
                    "type": self.accelerators.type,
                    "simulated": self.accelerators.simulated,
                }
            )
        return env


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _members(place: Place, *, trial: str = "") -> dict[str, Any]:
    cluster = {"worker": place.addresses} if place.num_processes > 1 else {}
    role = "worker" if cluster else "chief"
    return {"cluster": cluster, "task": Task(role=role, index=place.process_id, trial=trial)}


def _require_same_in_launchers(topology: Topology, name: str, variables: Mapping[str, str]) -> None:
    if not topology.cluster or topology.has_parameter_servers or topology.task.role == "evaluator":
        return  # some launchers give such a process a rank; here it has none
    own = Place(
        source=name,
        num_processes=topology.num_processes,
        process_id=topology.process_id,
        addresses=topology.synchronous_addresses,
    )
    for launcher in (from_jax, from_torchrun):
        place = launcher(variables)
        if place is not None:
            require_same(own, place)


def _json_object(name: str, text: str | None) -> dict[str, Any]:
    if not text:
        return {}
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(f"{name} is not JSON: {error}", received=text) from None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is not a JSON object", received=text)
    return cast("dict[str, Any]", value)


def _member(name: str, document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key, {})
    if not isinstance(value, dict):
        raise ConfigError(f"{name}: {key}", received=value, allowed="a JSON object")
    return cast("dict[str, Any]", value)


def _task(name: str, document: dict[str, Any], cluster: Mapping[str, tuple[str, ...]]) -> Task:
    """Reads the task. Members that it leaves out must follow from the cluster."""
    task = _member(name, document, "task")
    role, index = task.get("type"), task.get("index")
    if isinstance(index, str) and index.isdecimal():
        index = int(index)  # some launchers quote it
    if index is not None and (isinstance(index, bool) or not isinstance(index, int)):
        raise ConfigError(f"{name}: task.index", received=index, allowed="a whole number")
    if (role is None and len(cluster) > 1) or (
        index is None and len(cluster.get(role or next(iter(cluster), ""), ())) > 1
    ):
        raise ConfigError(
            f"{name}: task does not say which process of the cluster this is",
            received=cast("object", document.get("task", "no task")),
            allowed=f'"task": {{"type": one of {sorted(cluster)}, "index": its place in that list, from 0}}',
            action="set a different task in each process",
        )
    trial = task.get("trial")
    return Task(
        role=str(role if role is not None else next(iter(cluster), "chief")),
        index=index or 0,
        trial="" if trial is None else str(trial),
    )


def _addresses(name: str, role: str, value: object) -> tuple[str, ...]:
    items = cast("list[object]", value) if isinstance(value, list) else [None]
    if not all(isinstance(item, str) for item in items):
        raise ConfigError(f"{name}: cluster.{role}", received=cast("object", value), allowed='a list of "host:port"')
    return tuple(cast("list[str]", items))


def _job_name(value: object) -> str:
    # AI Platform put the whole trainingInput here; the training library needs only the name.
    if isinstance(value, dict):
        return str(cast("dict[str, object]", value).get("job_name", ""))
    return "" if value is None else str(value)


def _accelerators(value: dict[str, Any]) -> Accelerators:
    count, kind, simulated = value.get("count"), value.get("type"), value.get("simulated", False)
    if not isinstance(count, int) or not isinstance(kind, str) or not isinstance(simulated, bool):
        raise ConfigError(ACCELERATORS, received=value, allowed='{"count": int, "type": str, "simulated": bool}')
    return Accelerators(count=count, type=kind, simulated=simulated)
