"""What launchers other than Lockstep's own service tell a process of its job: pure functions of its environment.

Each returns a `Place`, or None where its launcher has not started this process. Most launchers say which process this
is and how many there are, and where the first one can be reached; where the others are, nobody knows before they meet.

Sources of the names: JAX (``jax.distributed.initialize``), PyTorch ("torchrun: Environment Variables"), Open MPI
("Environment variables set for MPI applications"), MPICH's Hydra (``PMI_*``), Slurm ("srun: output environment
variables"), Kubernetes ("Indexed Job", "Job with Pod-to-Pod Communication"), JobSet (pod names), and the variables that
Google's examples for JobSet set.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias, final

from lockstep.errors import ConfigError

Environment: TypeAlias = Mapping[str, str]

DEFAULT_PORT: Final = 8476
"""Where the first process listens, where the launcher names no port and one job runs on its machine."""

TORCH_PORT: Final = 29500
LOOPBACK: Final = "127.0.0.1"
COORDINATOR: Final = "JAX_COORDINATOR_ADDRESS"
COORDINATOR_PORT: Final = "JAX_COORDINATOR_PORT"

_MPI: Final = (
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
)
_FIRST_HIGH_PORT: Final = 61440  # above the range that systems hand out by themselves
_NUM_HIGH_PORTS: Final = 4096
_MAX_HOSTS: Final = 100_000
_NODE_SET: Final = re.compile(r"\[([^\]]*)\]")


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """What a launcher says.

    Attributes:
        source: the variables that say it, for messages.
        num_processes: how many processes train in step.
        process_id: which of them this one is, from 0.
        addresses: "host:port" of each by its number, "" where it is not known; the first one is.

    Raises:
        ConfigError: the numbers contradict each other.
    """

    source: str
    num_processes: int
    process_id: int
    addresses: tuple[str, ...]

    def __post_init__(self) -> None:
        if not 0 <= self.process_id < self.num_processes:
            raise ConfigError(
                f"{self.source}: the process's number is not below their count",
                received=f"number {self.process_id} of {self.num_processes}",
                allowed="0 to the count less one",
            )


def from_jax(env: Environment) -> Place | None:
    """Reads ``JAX_COORDINATOR_ADDRESS``, ``JAX_NUM_PROCESSES`` and ``JAX_PROCESS_ID``.

    The address alone says nothing of this process: it goes with what another launcher says.
    """
    names = ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID")
    if "JAX_PROCESS_ID" not in env:
        return None
    _require(env, (COORDINATOR, *names))
    return _place(
        ", ".join((COORDINATOR, *names)), env, *names, coordinator=_with_port(env[COORDINATOR], env, DEFAULT_PORT)
    )


def from_torchrun(env: Environment) -> Place | None:
    """Reads ``RANK``, ``WORLD_SIZE``, ``MASTER_ADDR`` and ``MASTER_PORT``, as torchrun sets them.

    Where torchrun's agent keeps its own store at ``MASTER_PORT``, the port after it is taken.
    """
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    if env["WORLD_SIZE"] != "1":
        _require(env, ("RANK", "WORLD_SIZE", "MASTER_ADDR"))
    port = _number(env, "MASTER_PORT") if env.get("MASTER_PORT") else TORCH_PORT
    if env.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
        port = port + 1 if port < 65535 else port - 1
    address = _join(env.get("MASTER_ADDR", LOOPBACK), port)
    return _place("RANK, WORLD_SIZE, MASTER_ADDR", env, "WORLD_SIZE", "RANK", coordinator=address)


def from_mpi(env: Environment) -> Place | None:
    """Reads ``OMPI_COMM_WORLD_RANK`` and ``_SIZE`` (Open MPI), or ``PMI_RANK`` and ``PMI_SIZE`` (MPICH, Intel MPI).

    MPI names no address. It is that of this machine where all processes are on it, else ``JAX_COORDINATOR_ADDRESS``,
    ``MASTER_ADDR``, or the first node of Slurm's step.
    """
    kind = next((names for names in _MPI if names[0] in env and names[1] in env), None)
    if kind is None:
        return None
    count, number, local_count = kind
    port = _high_port(
        next((env[name] for name in ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "SLURM_JOB_ID") if name in env), "")
    )
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST")
    if COORDINATOR in env:
        address = _with_port(env[COORDINATOR], env, port)
    elif env.get(local_count) == env[count] or env[count] == "1":
        address = _join(LOOPBACK, port)
    elif "MASTER_ADDR" in env:
        address = _join(env["MASTER_ADDR"], _number(env, "MASTER_PORT") if "MASTER_PORT" in env else port)
    elif nodes:
        address = _join(expand_nodes(nodes)[0], port)
    else:
        raise ConfigError(
            f"{count}: MPI does not say where its first process is, and not all are on this machine",
            action=f"set {COORDINATOR} to its host:port (mpirun -x {COORDINATOR}=...)",
        )
    return _place(f"{number}, {count}", env, count, number, coordinator=address)


def from_slurm(env: Environment) -> Place | None:
    """Reads a step's ``SLURM_PROCID``, ``SLURM_STEP_NUM_TASKS`` and ``SLURM_STEP_NODELIST``, as ``srun`` sets them.

    A batch script outside ``srun`` is one process, however many tasks the job has. The port comes from the job's and
    the step's number, unless ``JAX_COORDINATOR_PORT`` names one.
    """
    if "SLURM_PROCID" not in env or "SLURM_STEP_NODELIST" not in env:
        return None
    count = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in env else "SLURM_NTASKS"
    _require(env, ("SLURM_PROCID", "SLURM_STEP_NODELIST", count))
    nodes = expand_nodes(env["SLURM_STEP_NODELIST"])
    step = f"{env.get('SLURM_JOB_ID', '')}.{env.get('SLURM_STEP_ID', '')}"
    port = _number(env, COORDINATOR_PORT) if COORDINATOR_PORT in env else _high_port(step)
    coordinator = _with_port(env[COORDINATOR], env, port) if COORDINATOR in env else _join(nodes[0], port)
    hosts = _slurm_hosts(env, nodes)
    others = tuple(_join(host, port) for host in hosts[1:]) if len(hosts) == _number(env, count) else ()
    return _place("SLURM_PROCID, " + count, env, count, "SLURM_PROCID", coordinator=coordinator, others=others)


def from_kubernetes(env: Environment) -> Place | None:
    """Reads ``JOB_COMPLETION_INDEX``, which an indexed Job sets, with what its pod template has to add.

    - how many: ``JAX_NUM_PROCESSES`` (or ``JAX_PROCESS_COUNT``); without it each pod is a job of its own;
    - for a JobSet of several Jobs: ``JOB_INDEX`` and ``PROCESSES_IN_JOB``;
    - where the first pod is: ``JAX_COORDINATOR_ADDRESS``, or ``JOBSET_NAME`` and ``REPLICATED_JOB_NAME``, which make
      the name that JobSet gives it.
    """
    count = next((name for name in ("JAX_NUM_PROCESSES", "JAX_PROCESS_COUNT") if name in env), None)
    if "JOB_COMPLETION_INDEX" not in env or count is None:
        return None
    number = _number(env, "JOB_COMPLETION_INDEX")
    if "JOB_INDEX" in env and env["JOB_INDEX"] != "0":
        _require(env, ("JOB_INDEX", "PROCESSES_IN_JOB"))
        number += _number(env, "JOB_INDEX") * _number(env, "PROCESSES_IN_JOB")
    if COORDINATOR in env:
        host = env[COORDINATOR]
    elif "JOBSET_NAME" in env and "REPLICATED_JOB_NAME" in env:
        host = f"{env['JOBSET_NAME']}-{env['REPLICATED_JOB_NAME']}-0-0.{env['JOBSET_NAME']}"
    else:
        raise ConfigError(
            f"JOB_COMPLETION_INDEX and {count} are set, and nothing says where the first pod is",
            action=f"set {COORDINATOR} to JOB-0.SUBDOMAIN, or JOBSET_NAME and REPLICATED_JOB_NAME, in the pod template",
        )
    variables = {**env, "JOB_COMPLETION_INDEX": str(number)}
    address = _with_port(host, env, DEFAULT_PORT)
    return _place("JOB_COMPLETION_INDEX, " + count, variables, count, "JOB_COMPLETION_INDEX", coordinator=address)


LAUNCHERS: Final[tuple[Callable[[Environment], Place | None], ...]] = (
    from_jax,
    from_torchrun,
    from_mpi,
    from_slurm,
    from_kubernetes,
)
"""In the order in which they are asked: from the one nearest to the process to the one that gave out the machines."""


def find_place(env: Environment) -> Place | None:
    """Returns what the launcher nearest to this process says; None where no launcher has started it.

    Launchers are often nested (torchrun within Slurm), and then count different things: the nearest one is right. JAX's
    and torchrun's variables are not so nested: both speak of this very program, and have to say the same.

    Args:
        env: the process's environment.

    Raises:
        ConfigError: variables are missing, no numbers, or contradict each other.
    """
    jax, torchrun = from_jax(env), from_torchrun(env)
    if jax is not None and torchrun is not None:
        require_same(jax, torchrun)
    found = next((place for place in (launcher(env) for launcher in LAUNCHERS) if place is not None), None)
    if found is None and "JAX_NUM_PROCESSES" in env:
        _require(env, ("JAX_NUM_PROCESSES", "JAX_PROCESS_ID", COORDINATOR))
    return found


def require_same(one: Place, other: Place) -> None:
    """Checks that two sources say the same of this process.

    Raises:
        ConfigError: they do not.
    """
    if (one.num_processes, one.process_id) != (other.num_processes, other.process_id):
        raise ConfigError(
            f"{one.source} and {other.source} contradict each other",
            received=f"process {one.process_id} of {one.num_processes} and {other.process_id} of {other.num_processes}",
            action="set one of the two",
        )


def expand_nodes(text: str) -> list[str]:
    """Expands Slurm's list of nodes: ``n[01-03,7],x`` is n01, n02, n03, n7, x.

    Args:
        text: the list.

    Raises:
        ConfigError: it is none, or names more than 100 000 nodes.
    """
    hosts: list[str] = []
    for part in re.findall(r"(?:[^,\[\]]|\[[^\]]*\])+|[\[\]]", text):
        hosts += _expand(part, whole=text)
        if len(hosts) > _MAX_HOSTS:
            raise _bad_nodes(text)
    if not hosts:
        raise _bad_nodes(text)
    return hosts


def _expand(part: str, *, whole: str) -> list[str]:
    found = _NODE_SET.search(part)
    if found is None:
        if "[" in part or "]" in part:
            raise _bad_nodes(whole)
        return [part]
    members: list[str] = []
    for span in found[1].split(","):
        ends = re.fullmatch(r"(\d+)(?:-(\d+))?", span)
        if ends is None or int(ends[2] or ends[1]) - int(ends[1]) > _MAX_HOSTS:
            raise _bad_nodes(whole)
        width = len(ends[1])
        members += [f"{number:0{width}}" for number in range(int(ends[1]), int(ends[2] or ends[1]) + 1)]
    rests = _expand(part[found.end() :], whole=whole) if found.end() < len(part) else [""]
    return [part[: found.start()] + member + rest for member in members for rest in rests]


def _bad_nodes(text: str) -> ConfigError:
    return ConfigError("a list of Slurm's nodes", received=text, allowed="names such as node[01-03,7],other")


def _slurm_hosts(env: Environment, nodes: list[str]) -> list[str]:
    """Returns the host of each task in turn, [] where the tasks are not laid out node by node."""
    if env.get("SLURM_DISTRIBUTION", "block").partition(",")[0].partition(":")[0] not in ("block", "unknown"):
        return []
    counts: list[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", "").split(","):
        found = re.fullmatch(r"(\d+)(?:\(x(\d+)\))?", part)
        if found is None:
            return []
        counts += [int(found[1])] * int(found[2] or 1)
    if len(counts) != len(nodes):
        return []
    return [host for host, count in zip(nodes, counts, strict=True) for _ in range(count)]


def _place(
    source: str, env: Environment, count: str, number: str, *, coordinator: str, others: tuple[str, ...] = ()
) -> Place:
    num_processes = _number(env, count)
    unknown = ("",) * (num_processes - 1)
    return Place(
        source=source,
        num_processes=num_processes,
        process_id=_number(env, number),
        addresses=(coordinator, *(others or unknown)),
    )


def _require(env: Environment, names: tuple[str, ...]) -> None:
    missing = [name for name in names if not env.get(name)]
    if missing:
        there = [name for name in names if name not in missing]
        raise ConfigError(
            f"{' and '.join(missing)} not set, while {' and '.join(there)} is", action="set all of them, or none"
        )


def _number(env: Environment, name: str) -> int:
    text = env[name]
    if not text.isdecimal():
        raise ConfigError(name, received=text, allowed="a whole number")
    return int(text)


def _with_port(address: str, env: Environment, port: int) -> str:
    host, _, named = address.rpartition(":")
    if host and named.isdecimal() and (":" not in host or host.endswith("]")):
        return address
    return _join(address, _number(env, COORDINATOR_PORT) if COORDINATOR_PORT in env else port)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def _high_port(job: str) -> int:
    """Returns the same port in every process of a job, and probably another one for another job."""
    return _FIRST_HIGH_PORT + zlib.crc32(job.encode()) % _NUM_HIGH_PORTS
