"""What a replica's container gets of its node."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.containers import ContainerEngine, EngineKind, Mount, create
from lockstep.errors import ContainerEngineError, ImageError
from lockstep.jobs.running.order_parts import ContainerOrder, ContainerRoutes, ServerOrder
from lockstep.jobs.running.orders import ReplicaOrder
from lockstep.jobs.running.packages import Code
from lockstep.runner.containers.spec import ContainerPlan, NodeFacts, container_name, plan_container

PODMAN = ContainerEngine(kind=EngineKind.PODMAN, path="podman")
DOCKER = ContainerEngine(kind=EngineKind.DOCKER, path="docker")
GIB = 1 << 30
NODE = NodeFacts(
    env={"PATH": "/node/bin", "HOME": "/root", "LD_LIBRARY_PATH": "/node/lib", "TOKEN": "t"},
    user="5:6",
    runner="pid:[1] 2 3",
    num_cpus=4,
    memory_bytes=8 * GIB,
    ulimits={"nofile": 20000},
    tpu_devices=("/dev/accel0",),
    exists=lambda _path: True,
)
ORDER = ReplicaOrder(
    name="worker-replica-1",
    role="worker",
    index=1,
    job="j",
    attempt=2,
    command=("--epochs", "2"),
    container=ContainerOrder(image="gcr.io/p/i:1", images_folder="/home/cache/images"),
    cluster={"master": ("10.0.0.1:1",), "worker": ("10.0.0.2:1", "10.0.0.3:1")},
    spool="/home/spool/g-2/worker-replica-1",
    log_url="/bucket/local/jobs/j/logs/uid/worker-replica-1/attempt-002",
    model_dir="/bucket/local/jobs/j/model",
    checkpoint_dir="/bucket/local/jobs/j/checkpoints",
    tensorboard_dir="/bucket/local/jobs/j/tensorboard",
)
WORK = "/home/spool/g-2/worker-replica-1/work"
HEARTBEAT = "/home/spool/g-2/worker-replica-1/heartbeat"
PROFILE_REQUEST = "/home/spool/g-2/worker-replica-1/profile-request"


def container(**changes: Any) -> ReplicaOrder:
    assert ORDER.container is not None
    return replace(ORDER, container=replace(ORDER.container, **changes))


def plan(
    order: ReplicaOrder = ORDER,
    *,
    engine: ContainerEngine = PODMAN,
    code: tuple[Code, ...] = (),
    env: dict[str, str] | None = None,
    **facts: Any,
) -> ContainerPlan:
    node = replace(NODE, env={**NODE.env, **(env or {})}, **facts)
    return plan_container(order, engine=engine, code=code, env_file="/spool/env", facts=node)


def variables(made: ContainerPlan) -> dict[str, str]:
    return dict(line.split("=", 1) for line in made.env_lines)


def test_it_is_known_by_its_labels_and_by_a_name_of_its_own() -> None:
    spec = plan().spec
    assert spec.labels == {
        "lockstep.job": "j",
        "lockstep.replica": "worker-replica-1",
        "lockstep.attempt": "2",
        "lockstep.spool": ORDER.spool,
        "lockstep.runner": "pid:[1] 2 3",
    }
    others = [ORDER, replace(ORDER, attempt=3), replace(ORDER, spool="/other"), replace(ORDER, job="k" * 128)]
    assert len({container_name(order) for order in others}) == 4
    assert max(len(container_name(order)) for order in others) < 128
    server = replace(others[0], job="model/v1/0a1b2c3d")
    assert re.fullmatch(r"[a-zA-Z0-9][a-zA-Z0-9_.-]+", container_name(server)), "engines allow no other names"


def test_a_server_gets_a_network_and_limits_of_its_own_and_no_secret() -> None:
    routes = ContainerRoutes(port=7000, predict="/predict", health="/alive")
    server = ServerOrder(ready_within_s=60.0, silent_within_s=3.0, routes=routes)
    outputs = dict.fromkeys(("model_dir", "checkpoint_dir", "tensorboard_dir"))
    order = replace(ORDER, index=0, server=server, secrets={"LOCKSTEP_SERVER_TOKEN": "t"}, **outputs)  # type: ignore[arg-type]
    credentials = {"AWS_SECRET_ACCESS_KEY": "s", "GOOGLE_APPLICATION_CREDENTIALS": "/key.json", "TZ": "UTC"}
    made = plan(order, env=credentials, exists=lambda _: True)
    words = create(PODMAN, made.spec)
    assert words[words.index("--publish") + 1] == "127.0.0.1::7000"
    assert "--network" not in words
    assert int(words[words.index("--memory") + 1]) <= NODE.memory_bytes
    assert int(words[words.index("--pids-limit") + 1]) == 4096
    assert {mount.target for mount in made.spec.mounts} <= {WORK}
    secret = {"LOCKSTEP_SERVER_TOKEN", "LOCKSTEP_HEARTBEAT", *credentials} - {"TZ"}
    assert not secret & set(variables(made))


def test_it_sees_the_jobs_own_folders_and_no_more() -> None:
    assert plan().spec.mounts == (
        Mount(source=WORK, target=WORK, writable=True),
        Mount(source=HEARTBEAT, target=HEARTBEAT, writable=True),
        Mount(source=PROFILE_REQUEST, target=PROFILE_REQUEST),
        Mount(source="/bucket/local/jobs/j", target="/bucket/local/jobs/j", writable=True),
        Mount(source="/bucket/local/jobs/j/logs", target="/bucket/local/jobs/j/logs"),
    )
    assert plan().folders == (f"{WORK}/.home", "/bucket/local/jobs/j", "/bucket/local/jobs/j/logs")


def test_outputs_in_a_cloud_are_not_mounted() -> None:
    order = replace(ORDER, model_dir="gs://b/m", checkpoint_dir="gs://b/c", tensorboard_dir="s3://b/t")
    assert [mount.source for mount in plan(order).spec.mounts] == [WORK, HEARTBEAT, PROFILE_REQUEST]


def test_outputs_that_lie_apart_are_mounted_apart() -> None:
    order = replace(ORDER, model_dir="/a/model", checkpoint_dir="/b/checkpoints", tensorboard_dir=None)
    own = [WORK, HEARTBEAT, PROFILE_REQUEST]
    assert [mount.source for mount in plan(order).spec.mounts] == [*own, "/a/model", "/b/checkpoints"]


def test_what_a_job_names_it_may_read_where_it_is_there() -> None:
    order = container(readable=("/bucket/data", "/bucket/data/train", "/bucket/absent", "/bucket/local/jobs/j/model"))
    mounts = plan(order, exists=lambda path: path != "/bucket/absent").spec.mounts
    assert mounts[5:] == (Mount(source="/bucket/data", target="/bucket/data"),)


def linked(**links: str) -> NodeFacts:
    """Returns a node on which names below the project's folder are links."""

    def real(path: str) -> str:
        for name, target in links.items():
            link = f"/bucket/local/{name}"
            if path == link or path.startswith(f"{link}/"):
                return target + path.removeprefix(link)
        return path.replace("/bucket/", "/mnt/disk/", 1)

    return replace(NODE, resolve=real)


def planned(order: ReplicaOrder, facts: NodeFacts) -> list[Mount]:
    made = plan_container(order, engine=PODMAN, code=(), env_file="/e", facts=facts)
    return [mount for mount in made.spec.mounts if mount.target.startswith("/bucket")]


def test_a_link_in_its_projects_folder_leads_nowhere_else() -> None:
    order = container(readable=("/bucket/local/data", "/bucket/shared"), project_folder="/bucket/local")
    inside = linked(data="/mnt/disk/local/jobs/earlier/model")
    assert planned(order, inside)[-2:] == [
        Mount(source="/mnt/disk/local/jobs/earlier/model", target="/bucket/local/data"),
        Mount(source="/bucket/shared", target="/bucket/shared"),  # which no job of a project's key writes to
    ]
    for target in ("/", "/etc", "/mnt/disk/other/jobs/x", "/mnt/disk/local2"):
        with pytest.raises(ImageError, match="/bucket/local/data leads out of its project's folder through a link"):
            planned(order, linked(data=target))


def test_its_outputs_are_not_led_elsewhere_by_a_link_that_another_job_made() -> None:
    order = container(project_folder="/bucket/local")
    top = Mount(source="/mnt/disk/local/jobs/j", target="/bucket/local/jobs/j", writable=True)
    assert top in planned(order, linked())
    with pytest.raises(ImageError, match="/bucket/local/jobs/j leads out"):
        planned(order, linked(jobs="/etc"))


def test_its_variables_are_the_jobs_and_hardly_any_of_the_nodes() -> None:
    env = variables(plan(env={"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "RAY_TOKEN": "r"}))
    assert env["AWS_SECRET_ACCESS_KEY"] == "key"
    assert env["HOME"] == f"{WORK}/.home"
    assert "10.0.0.2:1" in env["TF_CONFIG"]
    assert env.keys().isdisjoint({"PATH", "LD_LIBRARY_PATH", "TOKEN", "RAY_TOKEN", "AWS_PROFILE"})
    assert variables(plan(replace(ORDER, environment={"HOME": "/mine"})))["HOME"] == "/mine"


@pytest.mark.parametrize("engine", [PODMAN, DOCKER], ids=lambda engine: engine.kind)
def test_no_secret_stands_in_the_command_line(engine: ContainerEngine) -> None:
    secrets = {"ONE": "s3cr3t", "TWO": "s3cr3t\nof two lines"}
    made = plan(replace(ORDER, environment=secrets), engine=engine, env={"AWS_SECRET_ACCESS_KEY": "s3cr3t"})
    words = create(engine, made.spec)
    assert not [word for word in words if "s3cr3t" in word]
    assert variables(made)["ONE"] == "s3cr3t"
    assert dict(made.inherited_env) == {"TWO": "s3cr3t\nof two lines"}
    assert words[words.index("--env") + 1] == "TWO"


@pytest.mark.parametrize("name", ["LD_PRELOAD", "PATH", "DOCKER_HOST", "CONTAINERS_CONF", "https_proxy", "GODEBUG"])
def test_several_lines_cannot_steer_the_engine(name: str) -> None:
    with pytest.raises(ImageError, match=f"the variable {name} of a container has several lines; allowed: one line"):
        plan(replace(ORDER, environment={name: "a\nb"}))
    assert variables(plan(replace(ORDER, environment={name: "a"})))[name] == "a", "a line is the container's alone"


def test_credentials_are_mounted_read_only() -> None:
    made = plan(env={"GOOGLE_APPLICATION_CREDENTIALS": "/node/key.json"})
    assert variables(made)["GOOGLE_APPLICATION_CREDENTIALS"] == "/run/lockstep/google-credentials.json"
    assert Mount(source="/node/key.json", target="/run/lockstep/google-credentials.json") in made.spec.mounts
    made = plan(env={"AWS_PROFILE": "work"})
    assert variables(made)["AWS_CONFIG_FILE"] == "/run/lockstep/aws-config"
    assert Mount(source="/root/.aws/credentials", target="/run/lockstep/aws-credentials") in made.spec.mounts
    absent = plan(env={"AWS_PROFILE": "work", "GOOGLE_APPLICATION_CREDENTIALS": "/k"}, exists=lambda _: False)
    assert len(absent.spec.mounts) == 3
    assert "GOOGLE_APPLICATION_CREDENTIALS" not in variables(absent)


def test_a_machine_types_size_is_its_limit_where_it_reserves() -> None:
    spec = plan(container(cpus=8, memory_bytes=4 * GIB)).spec
    assert (spec.cpus, spec.memory_bytes, spec.shm_bytes) == (4, 4 * GIB, 2 * GIB), "no more processors than there are"
    free = plan().spec
    assert (free.cpus, free.memory_bytes, free.shm_bytes) == (None, None, 4 * GIB)
    assert free.ulimits == {"nofile": 20000}


def test_its_files_belong_to_whoever_runs_it() -> None:
    assert plan().spec.user == "5:6"
    assert plan(engine=replace(PODMAN, rootless=True)).spec.user == "0:0", "which is this user outside"


def test_a_module_runs_where_its_code_is() -> None:
    folder = Path(WORK, "code")
    code = (Code(folder=folder, module_path=(folder,)),)
    order = container(entry_point=("python3", "-m", "train"), runs_code=True)
    assert plan(order, code=code).spec.workdir == str(folder)
    assert variables(plan(order, code=code))["PYTHONPATH"] == str(folder)
    assert plan(code=code).spec.workdir is None, "an image's own program runs where the image says"


GPUS: dict[str, Any] = {"accelerator_type": "NVIDIA_TESLA_V100", "accelerator_count": 2}


def test_granted_gpus_are_handed_on() -> None:
    order = replace(ORDER, **GPUS)
    granted = plan(order, env={"CUDA_VISIBLE_DEVICES": "1,3"}, has_gpu_descriptions=True)
    assert granted.spec.gpus == ("1", "3")
    assert "CUDA_VISIBLE_DEVICES" not in variables(granted), "within they are numbered anew"
    assert plan(order, engine=DOCKER).spec.gpus == ("0", "1")
    assert plan(replace(order, simulated=True)).spec.gpus == ()
    with pytest.raises(ContainerEngineError, match="podman has no description of this node's GPUs; describe them with"):
        plan(order)


def test_a_tpus_devices_are_handed_on() -> None:
    assert plan().spec.devices == ()
    assert plan(replace(ORDER, accelerator_type="TPU_V5E", accelerator_count=1)).spec.devices == ("/dev/accel0",)


@pytest.mark.parametrize("exists", [lambda _: True, lambda _: False], ids=["there", "absent"])
def test_a_plan_changes_nothing(exists: Callable[[str], bool]) -> None:
    assert plan(exists=exists) == plan(exists=exists)
    assert not Path(WORK).exists()
