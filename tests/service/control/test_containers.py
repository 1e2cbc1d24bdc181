"""What the service orders for a job in containers, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lockstep.clusters import EngineChoice
from lockstep.errors import ImageError, InvalidInputError
from lockstep.home import Home
from lockstep.jobs.input.documents import parse_job
from lockstep.jobs.input.gangs import resolve
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.jobs.running.order_parts import ContainerOrder
from lockstep.jobs.running.orders import GANG_ORDER
from lockstep.jobs.running.states import JobState
from lockstep.service.api.control.preview import ENTRY_POINT, NoAccelerators, preview
from lockstep.service.control.containers import check_containers, container_order, readable_paths
from lockstep.service.settings import Settings
from lockstep.testing.bench import Bench
from lockstep.testing.container_engine import FakeContainerEngine

IMAGE = "reg.example.com/trainer:1"
SETTINGS = Settings(home=Home.from_env({"LOCKSTEP_HOME": "/home/h"}), bucket="/b")


def ordered(*, reserves: bool = False, **training_input: Any) -> ContainerOrder | None:
    document = {"masterConfig": {"imageUri": IMAGE}, **training_input}
    request = parse_job({"jobId": "j", "trainingInput": document}, source="test")
    gang = resolve(request.training_input, catalogue=load_catalogue())
    return container_order(
        gang.replicas[0], project="local", settings=SETTINGS, catalogue=load_catalogue(), reserves=reserves
    )


def test_an_image_is_ordered_with_its_entry_point() -> None:
    assert ordered() == ContainerOrder(image=IMAGE, images_folder="/home/h/cache/images", project_folder="/b/local")
    given = ordered(
        masterConfig={"imageUri": IMAGE, "containerCommand": ["run"], "containerArgs": ["--data=/b/data/d"]}
    )
    assert given is not None
    assert (given.entry_point, given.readable) == (("run",), ("/b/data/d",))
    module = ordered(pythonModule="train")
    assert module is not None
    assert (module.entry_point, module.runs_code) == (("python3", "-m", "train"), True)
    assert ordered(masterConfig={}, pythonModule="train") is None


def test_a_machine_type_is_a_limit_where_it_reserves() -> None:
    limited = ordered(reserves=True)
    assert limited is not None
    assert (limited.cpus, limited.memory_bytes) == (4, 15 << 30)


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("/b/data", "/b/data"),
        ("/b/data/mnist", "/b/data/mnist"),
        ("--data=/b/data/mnist/", "/b/data/mnist"),
        ("file:///b/data/mnist", "/b/data/mnist"),
        ("/b/data/mnist/*.tfrec", "/b/data/mnist"),
        ("/b/data/mnist/part-?/x", "/b/data/mnist"),
        ("/b/local/jobs/other/model", "/b/local/jobs/other/model"),
        ("/b/local", "/b/local"),
        # another project's, or all of them
        ("/b/theirs/jobs/x/model", None),
        ("/b/data/../theirs/jobs", None),
        ("/b/theirs", None),
        ("/b", None),
        ("/b/*", None),
        # not the bucket's
        ("/etc/passwd", None),
        ("/b/../etc", None),
        ("/bb/x", None),
        ("gs://b/data", None),
        ("--epochs=2", None),
        ("b/data", None),
    ],
)
def test_of_a_local_bucket_a_job_may_read_what_it_names(word: str, path: str | None) -> None:
    expected = () if path is None else (path,)
    for bucket, found in (("/b", expected), ("gs://b", ())):
        assert (
            readable_paths([word], bucket=bucket, project="local", is_project=lambda path: path == "/b/theirs") == found
        )


def check(settings: Settings, *, model: str, image: str | None = IMAGE) -> None:
    document = {"pythonModule": "train"} if image is None else {"masterConfig": {"imageUri": image}}
    request = parse_job({"jobId": "j", "trainingInput": document}, source="test")
    gang = resolve(request.training_input, catalogue=load_catalogue())
    check_containers(gang, outputs={"model": model}, settings=settings)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeContainerEngine:
    made = FakeContainerEngine(tmp_path / "engine")
    monkeypatch.setenv("PATH", f"{made.folder}:/usr/bin:/bin")
    monkeypatch.delenv("LOCKSTEP_CONTAINER_ENGINE", raising=False)
    return made


@pytest.mark.parametrize(
    "model",
    ["/model", "/home/model", "/home/h/model", "/home/h/spool/x/model", "/etc/x/model", "/usr/local/model", "/b/model"],
)
def test_outputs_do_not_open_the_home_or_the_system(fake: FakeContainerEngine, model: str) -> None:
    with pytest.raises(InvalidInputError, match="jobDir: a container may not write there"):
        check(SETTINGS, model=model)
    check(SETTINGS, model=model, image=None)


@pytest.mark.parametrize("model", ["/b/local/jobs/j/model", "/home/me/run/model", "gs://b/j/model", "/b/runs/model"])
def test_outputs_may_lie_elsewhere(fake: FakeContainerEngine, model: str) -> None:
    check(SETTINGS, model=model)


def test_a_bucket_in_the_home_is_no_secret(fake: FakeContainerEngine) -> None:
    check(Settings(home=SETTINGS.home, bucket="/home/h/bucket"), model="/home/h/bucket/local/jobs/j/model")


def test_what_is_no_image_is_refused(fake: FakeContainerEngine) -> None:
    with pytest.raises(ImageError, match="imageUri; received '--privileged'"):
        check(SETTINGS, model="gs://b/model", image="--privileged")


def test_without_an_engine_nothing_is_submitted(fake: FakeContainerEngine) -> None:
    fake.configure(answers=False)
    with pytest.raises(InvalidInputError, match=f"image {IMAGE} cannot be run: no container engine answers here: .*"):
        check(SETTINGS, model="gs://b/model")
    elsewhere = EngineChoice(name="attached", address="10.0.0.2:6379")
    check(Settings(home=SETTINGS.home, bucket="/b", engine=elsewhere), model="gs://b/model")


def test_a_preview_names_the_image_and_its_limits() -> None:
    document = {"masterConfig": {"imageUri": IMAGE, "containerArgs": ["--data=/b/local/d"]}}
    request = parse_job({"jobId": "j", "trainingInput": document}, source="test")
    shown = preview(request, project="local", settings=SETTINGS, catalogue=load_catalogue(), cluster=NoAccelerators())
    (replica,) = shown["replicas"]
    assert replica["command"] == [ENTRY_POINT, "--data=/b/local/d"]
    assert replica["container"] == {"image": IMAGE, "cpus": None, "memoryBytes": None, "readable": ["/b/local/d"]}
    assert "LD_LIBRARY_PATH" not in shown["passedOn"]
    assert "JAX_COMPILATION_CACHE_DIR" not in replica["environment"]


@pytest.mark.heavy
def test_a_job_of_two_containers_runs(bench: Bench, fake: FakeContainerEngine) -> None:
    fake.configure(registry={IMAGE: "sha256:1"})
    script = 'echo "$TF_CONFIG"; echo done > "$AIP_MODEL_DIR.$LOCKSTEP_ROLE$$"'
    bench.create(
        "job",
        pythonModule=None,
        scaleTier="CUSTOM",
        masterType="n1-standard-4",
        workerType="n1-standard-4",
        workerCount="1",
        masterConfig={"imageUri": IMAGE, "containerCommand": ["/bin/sh", "-c"], "containerArgs": [script]},
        workerConfig={"containerCommand": ["/bin/sh", "-c"], "containerArgs": [script]},
    )
    job = bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED, job.error_message
    assert len(list((bench.home.bucket / "job").glob("model.*"))) == 2
    order = GANG_ORDER.validate_python(job.gang_order)
    assert [replica.container.image for replica in order.replicas if replica.container] == [IMAGE, IMAGE]
    assert len(fake.calls("pull")) == 1
    assert fake.containers() == []


def test_an_image_that_is_not_there_is_the_users_error(bench: Bench, fake: FakeContainerEngine) -> None:
    bench.create("job", pythonModule=None, masterConfig={"imageUri": IMAGE})
    job = bench.step_until_over("job")
    assert (job.state, job.end_reason) == (JobState.FAILED, "USER_ERROR(master-0)")
    assert f"image {IMAGE}: podman says: " in (job.error_message or "")
    assert job.num_restarts == 0


def test_a_registry_that_is_away_is_worth_another_try(bench: Bench, fake: FakeContainerEngine) -> None:
    fake.configure(pull_error="dial tcp: connection refused")
    policy = {"restartPolicy": {"maxRestarts": 1}}
    bench.create("job", pythonModule=None, masterConfig={"imageUri": IMAGE}, lockstep=policy)
    job = bench.step_until_over("job")
    assert (job.state, job.end_reason, job.num_restarts) == (JobState.FAILED, "MACHINE_ERROR(master-0)", 1)
