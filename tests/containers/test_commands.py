"""Command lines of both engines: what is in them, and that nothing secret is."""

from __future__ import annotations

import pytest

from lockstep.containers import ContainerEngine, ContainerSpec, EngineKind, Mount, build, create, push
from lockstep.containers.commands import execute, pull
from lockstep.errors import ImageError

PODMAN = ContainerEngine(kind=EngineKind.PODMAN, path="/usr/bin/podman")
DOCKER = ContainerEngine(kind=EngineKind.DOCKER, path="/usr/bin/docker", has_init=False, has_selinux=True)
SPEC = ContainerSpec(
    name="n",
    image="gcr.io/p/i:1",
    entry_point=("python3", "-m", "train"),
    arguments=("--epochs", "2"),
    labels={"lockstep.job": "j"},
    env_file="/spool/container.env",
    inherited=("PEM",),
    mounts=(Mount(source="/b/j", target="/b/j", writable=True), Mount(source="/data", target="/data")),
    workdir="/spool/work/code",
    user="7:8",
    cpus=4.0,
    memory_bytes=1024,
    shm_bytes=512,
    ulimits={"nofile": 99},
    gpus=("0", "2"),
    devices=("/dev/accel0",),
)

COMMON = [
    *("create", "--name", "n", "--pull", "never", "--network", "host", "--log-driver", "none"),
    *("--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--user", "7:8"),
]
MIDDLE = [
    *("--label", "lockstep.job=j", "--env-file", "/spool/container.env", "--env", "PEM"),
    *("--mount", "type=bind,source=/b/j,target=/b/j", "--mount", "type=bind,source=/data,target=/data,readonly"),
    *("--workdir", "/spool/work/code", "--shm-size", "512", "--cpus", "4"),
    *("--memory", "1024", "--memory-swap", "1024", "--ulimit", "nofile=99:99"),
]
END = [
    *("--device", "/dev/accel0", "--entrypoint", "python3"),
    *("gcr.io/p/i:1", "-m", "train", "--epochs", "2"),
]


def test_podman_makes_a_container_by_this_command_line() -> None:
    gpus = ["--device", "nvidia.com/gpu=0", "--device", "nvidia.com/gpu=2"]
    assert create(PODMAN, SPEC) == [*COMMON, "--init", "--http-proxy=false", *MIDDLE, *gpus, *END]


def test_docker_makes_one_by_this() -> None:
    selinux = ["--security-opt", "label=disable"]
    assert create(DOCKER, SPEC) == [*COMMON, *selinux, *MIDDLE, "--gpus", '"device=0,2"', *END]


def test_an_image_that_is_given_nothing_runs_what_it_runs_by_itself() -> None:
    spec = ContainerSpec(name="n", image="i", env_file="/e", user="0:0", shm_bytes=1)
    assert create(PODMAN, spec)[-3:] == ["--shm-size", "1", "i"]
    assert "--memory" not in create(PODMAN, spec)


@pytest.mark.parametrize("path", ["/a,b", "relative", 'a"b', "/a\nb"])
def test_a_path_that_would_read_as_options_is_refused(path: str) -> None:
    spec = ContainerSpec(
        name="n", image="i", env_file="/e", user="0:0", shm_bytes=1, mounts=(Mount(source=path, target="/x"),)
    )
    with pytest.raises(ImageError, match="a path cannot be mounted into a container; received"):
        create(PODMAN, spec)


@pytest.mark.parametrize(
    ("engine", "image", "is_plain"),
    [
        (PODMAN, "localhost:5000/x", True),
        (PODMAN, "127.0.0.1:5000/x", True),
        (PODMAN, "gcr.io/p/x", False),
        (PODMAN, "localhost.example.com/x", False),
        (PODMAN, "x", False),
        (DOCKER, "localhost:5000/x", False),
    ],
    ids=lambda value: str(getattr(value, "kind", value)),
)
def test_a_registry_of_this_machine_needs_no_certificate(engine: ContainerEngine, image: str, is_plain: bool) -> None:
    assert ("--tls-verify=false" in pull(engine, image)) is is_plain
    assert ("--tls-verify=false" in push(engine, image)) is is_plain
    assert pull(engine, image)[-1] == push(engine, image)[-1] == image


def test_a_command_runs_in_a_container_with_a_terminal_or_without() -> None:
    assert execute("n", ["ls", "-l"], terminal=None) == ["exec", "--interactive", "n", "ls", "-l"]
    shell = execute("n", [], terminal="xterm")
    assert shell[:6] == ["exec", "--interactive", "--tty", "--env", "TERM=xterm", "n"]
    assert shell[6:8] == ["/bin/sh", "-c"]


def test_a_build_has_its_containerfile_apart() -> None:
    assert build(tag="t", containerfile="/c", folder="/f") == ["build", "--tag", "t", "--file", "/c", "/f"]
