"""`lockstep.submit` and `lockstep.Job` against a service: scripts, modules, functions, and how they end."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep.errors import (
    ConfigError,
    ConflictError,
    DeadlineError,
    InvalidInputError,
    JobCancelledError,
    JobFailedError,
    MissingInputError,
    NotFoundError,
    UnavailableError,
    WrongStateError,
)
from lockstep.submission.job_names import make_job_name
from lockstep.testing.served import Served

WAIT_S = 60.0
HOSTILE = "<script>alert(1)</script>"

TRAINING = """
import json, os, pathlib, sys
import lockstep
from lockstep.storage import open_bucket

FACTOR = 2

def double(x):
    return FACTOR * x

def train(x, *, name="net"):
    print("training", x, os.environ["COLOUR"], flush=True)
    lockstep.report_progress(step=x, loss=0.5)
    open_bucket(os.environ["AIP_MODEL_DIR"]).write(f"{name}/weights.bin", b"123")
    return {"doubled": double(x), "shape": (1, 2)}

def unsound():
    print("the last words", flush=True)
    raise ValueError("<script>alert(1)</script> \\x1b[31m no such data")

def sleep():
    import time
    print("sleeping", flush=True)
    time.sleep(300)

def returns_what_json_has_not():
    return {1, 2}

if __name__ == "__main__":
    print("arguments", sys.argv[1:], flush=True)
"""


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module of the user's, imported as a program that submits would import it."""
    folder = tmp_path / "training_code"
    folder.mkdir()
    (folder / "training_of_mine.py").write_text(TRAINING)
    monkeypatch.syspath_prepend(folder)
    yield importlib.import_module("training_of_mine")
    sys.modules.pop("training_of_mine")


def recorded(service: Served) -> list[str]:
    """Returns the names of all jobs."""
    return [job["jobId"] for job in service.http.get("/v1/projects/local/jobs").json()["jobs"]]


def test_a_function_runs_as_a_job_that_python_watches(service: Served, code: Any, tmp_path: Path) -> None:
    job = lockstep.submit(code.train, args=[21], env={"COLOUR": "green"}, labels={"team": "vision"})
    assert re.fullmatch(r"train_\d{8}_\d{6}_\w{4}", job.name)
    assert job.state in {"QUEUED", "PREPARING", "RUNNING"}
    followed: list[str] = []
    reader = threading.Thread(target=lambda: followed.extend(e["textPayload"] for e in job.logs(follow=True)))
    reader.start()
    with pytest.raises(WrongStateError, match=r"has no result yet; received .*; call wait\(\) first"):
        _ = job.result
    assert job.wait(WAIT_S, show=False) is job
    reader.join(WAIT_S)
    assert followed == ["training 21 green"]
    assert [entry["textPayload"] for entry in job.logs("textPayload:green")] == ["training 21 green"]
    assert [*job.logs("textPayload:red")] == []
    assert job.state == "SUCCEEDED"
    assert job.resource["labels"] == {"team": "vision"}
    assert job.result == {"doubled": 42, "shape": [1, 2]}
    assert job.cost.is_final
    assert isinstance(job.cost.usd, Decimal)
    assert str(job.cost).startswith(f"${job.cost.usd}, ")
    assert repr(job).startswith(f"Job({job.name}: SUCCEEDED, ")
    assert job.url == f"{service.url}/projects/local/jobs/{job.name}"
    assert f'<a href="{job.url}"' in job._repr_html_()
    assert "step 21, loss 0.5" in job._repr_html_()

    paths = [artifact["path"] for artifact in job.artifacts()]
    assert {"model/net/weights.bin", "model/function-result.json"} <= set(paths)
    assert job.fetch("model/net/weights.bin", to=tmp_path) == tmp_path / "weights.bin"
    assert (tmp_path / "weights.bin").read_bytes() == b"123"
    assert job.fetch("model", to=tmp_path / "fetched") == tmp_path / "fetched"
    assert (tmp_path / "fetched" / "net" / "weights.bin").read_bytes() == b"123"
    with pytest.raises(NotFoundError, match=r"left no model/weights\.bin; allowed: .*model/net/weights\.bin"):
        job.fetch("model/weights.bin")
    with pytest.raises(InvalidInputError, match="no artifact is named"):
        job.fetch("/")

    again = lockstep.Job(job.name)
    assert repr(again) == f"Job({job.name})"
    assert again.result == job.result
    with pytest.raises(ConflictError):
        lockstep.submit(code.train, args=[21], name=job.name)
    with pytest.raises(NotFoundError):
        lockstep.Job("no_such_job").refresh()


def test_a_job_that_fails_says_why_with_its_last_lines(service: Served, code: Any) -> None:
    config = {"trainingInput": {"lockstep": {"restartPolicy": {"maxRestarts": 0}}}}
    job = lockstep.submit(code.unsound, config=config)
    with pytest.raises(JobFailedError) as caught:
        job.wait(WAIT_S, show=False)
    error = caught.value
    assert not isinstance(error, JobCancelledError)
    assert str(error).startswith(f"job {job.name} failed: ")
    assert error.log_lines[0] == "the last words"
    assert any("no such data" in line for line in error.log_lines)
    assert "\x1b" not in "".join([*error.log_lines, str(error)])
    assert any("the last words" in note for note in error.__notes__)
    with pytest.raises(JobFailedError):
        _ = job.result
    shown = job._repr_html_()
    assert "FAILED" in shown
    assert "<script" not in shown


def test_a_job_goes_on_when_nobody_waits_and_is_cancelled_on_request(service: Served, code: Any) -> None:
    job = lockstep.submit(code.sleep)
    next(iter(job.logs(follow=True)))
    with pytest.raises(DeadlineError, match=f"job {job.name} is not over; received 'RUNNING'; the job continues"):
        job.wait(0.1, show=False)
    assert not job.cost.is_final
    assert job.cancel() is job
    with pytest.raises(JobCancelledError, match=f"job {job.name} was cancelled"):
        job.wait(WAIT_S, show=False)


def test_a_value_that_json_does_not_have_fails_no_job(service: Served, code: Any) -> None:
    job = lockstep.submit(code.returns_what_json_has_not).wait(WAIT_S, show=False)
    with pytest.raises(WrongStateError, match=r"has stored no result: .* is not a value of JSON.*'set'"):
        _ = job.result
    assert any("the returned value is not stored" in entry["textPayload"] for entry in job.logs())


def test_scripts_and_modules_get_their_arguments(service: Served, code: Any, tmp_path: Path) -> None:
    script = tmp_path / "training_code" / "training_of_mine.py"
    job = lockstep.submit(script, args=["--epochs", 3, "--rate", 0.1, tmp_path], strategy="auto", name="by_path")
    job.wait(WAIT_S, show=False)
    (line,) = [entry["textPayload"] for entry in job.logs()]
    assert line == f"arguments ['--epochs', '3', '--rate', '0.1', '{tmp_path}', '--strategy', 'auto']"
    with pytest.raises(WrongStateError, match="job by_path has stored no result"):
        _ = job.result

    preview = lockstep.submit("training_of_mine", args=["x"], name="by_module", dry_run=True)
    assert preview["replicas"][0]["command"][-3:] == ["-m", "training_of_mine", "x"]
    assert "training_code-" in preview["replicas"][0]["packages"][0], "found where Python would find it"
    nested = lockstep.submit(script, package_path=tmp_path, dry_run=True)
    assert nested["replicas"][0]["command"][-1] == "training_code.training_of_mine"
    assert recorded(service) == ["by_path"], "a dry run records nothing"


def test_machines_packages_and_secrets_are_asked_for_by_arguments(service: Served, code: Any, tmp_path: Path) -> None:
    config = {"trainingInput": {"region": "europe-west4"}, "labels": {"a": "b"}}
    preview = lockstep.submit(
        code.train,
        args=[1],
        machine_type="n1-standard-8",
        accelerator=("nvidia-tesla-v100", 2),
        worker_count=2,
        worker_machine_type="n1-standard-4",
        requirements=["tiny-package>=1.0", "other"],
        env={"COLOUR": "red"},
        secrets={"PASSWORD": "password"},
        labels={"c": "d"},
        config=config,
        job_dir=tmp_path / "out",
        dry_run=True,
    )
    asked = preview["trainingInput"]
    assert (asked["scaleTier"], asked["masterType"], asked["workerCount"]) == ("CUSTOM", "n1-standard-8", "2")
    assert asked["masterConfig"]["acceleratorConfig"] == {"count": "2", "type": "NVIDIA_TESLA_V100"}
    assert asked["region"] == "europe-west4"
    assert asked["lockstep"]["environment"] == {"requirements": "lockstep-requirements.txt"}
    assert asked["lockstep"]["secrets"] == {"PASSWORD": "password"}
    assert preview["labels"] == {"a": "b", "c": "d"}
    assert preview["outputs"]["model"] == f"{tmp_path}/out/model"
    assert [replica["name"] for replica in preview["replicas"]] == [
        "master-replica-0",
        "worker-replica-0",
        "worker-replica-1",
    ]
    (tmp_path / "config.yaml").write_text("trainingInput: {scaleTier: STANDARD_1}\n")
    standard = lockstep.submit(code.train, args=[1], config=tmp_path / "config.yaml", dry_run=True)
    assert standard["trainingInput"]["scaleTier"] == "STANDARD_1"


REFUSALS: list[tuple[dict[str, Any], type[Exception], str]] = [
    ({"program": "no_such_script.py"}, MissingInputError, r"program: no script .*no_such_script\.py"),
    ({"program": "no_such_module"}, MissingInputError, "program: no module 'no_such_module'.*with package_path"),
    ({"program": "train now"}, InvalidInputError, "program; received 'train now'; allowed: the path of a script"),
    ({"args": [1, 2]}, InvalidInputError, r"train\(x, \*, name='net'\) does not take these arguments: too many"),
    ({"args": [{1}]}, InvalidInputError, r"args\[0\] is not a value of JSON; received 'set'"),
    ({"program": "training_of_mine", "kwargs": {"x": 1}}, InvalidInputError, "kwargs are for functions"),
    ({"program": "training_of_mine", "args": [True]}, InvalidInputError, r"args\[0\]; received True"),
    ({"strategy": "mirored"}, InvalidInputError, "there is no such strategy.*did you mean 'mirrored'"),
    ({"package_path": "nowhere"}, MissingInputError, "package_path: no folder .*nowhere"),
    ({"requirements": "scikit-learn"}, InvalidInputError, "requirements; received 'scikit-learn'; allowed: a file in"),
    ({"requirements": ["a\nb"]}, InvalidInputError, r"requirements; received 'a\\nb'; allowed: one package in each"),
    ({"name": "with-dash"}, ConfigError, "jobId.*letters, digits and underscores"),
    ({"config": {"trainingInput": {"maschine": 1}}}, ConfigError, "maschine"),
    ({"machine_type": "n1-standard-4", "scale_tier": "BASIC"}, ConfigError, "masterType.*only with scaleTier CUSTOM"),
    ({"packages": ["absent.whl"]}, MissingInputError, "packages: absent.whl cannot be read"),
    ({"packages": "absent.whl"}, InvalidInputError, "packages; received 'absent.whl'; allowed: a list"),
    (
        {"program": "training_of_mine", "args": "--epochs"},
        InvalidInputError,
        "args; received '--epochs'; allowed: a list",
    ),
]


@pytest.mark.parametrize(("asked", "kind", "said"), REFUSALS, ids=[said[:30] for _, _, said in REFUSALS])
def test_what_cannot_be_submitted_is_refused_by_its_argument(
    service: Served, code: Any, asked: dict[str, Any], kind: type[Exception], said: str
) -> None:
    program = asked.pop("program", code.train)
    if callable(program):
        asked = {"args": [1], **asked}
    with pytest.raises(kind, match=said) as caught:
        lockstep.submit(program, **asked)
    assert "\n" not in str(caught.value)
    assert recorded(service) == []


def test_a_key_of_another_project_sees_nothing(service: Served, code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from lockstep.jobs.security.access import Scope

    job = lockstep.submit(code.train, args=[1], env={"COLOUR": "red"})
    monkeypatch.setenv("LOCKSTEP_TOKEN", service.key(Scope.SUBMITTER, project="other"))
    for read in (lambda: lockstep.Job(job.name).refresh(), lambda: lockstep.Job(job.name, project="other").refresh()):
        with pytest.raises((lockstep.errors.PermissionDeniedError, NotFoundError)):
            read()
    shown = lockstep.Job(job.name, project="other")._repr_html_()
    assert "not read now" in shown
    with lockstep.Client.from_env(project="other") as client, pytest.raises(InvalidInputError, match="another project"):
        lockstep.submit(code.train, args=[1], client=client, project="local")


def test_names_of_jobs_are_valid_and_new() -> None:
    for stem, begins in (
        ("train", "train_"),
        ("my-net.v2", "my_net_v2_"),
        ("3d", "job_3d_"),
        ("__", "job_"),
        ("é", "job_"),
    ):
        name = make_job_name(stem)
        assert name.startswith(begins)
        assert re.fullmatch(r"[a-zA-Z][a-zA-Z0-9_]{0,127}", name)
    assert len({make_job_name("x" * 300) for _ in range(20)}) > 1


@pytest.mark.parametrize("expression", ["lockstep.submit", "lockstep.Job", "lockstep.Client", "lockstep.client"])
def test_submitting_imports_neither_jax_nor_keras(expression: str) -> None:
    check = "assert not {'jax', 'keras', 'ray', 'pandas', 'IPython'} & set(sys.modules), sorted(sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, lockstep; {expression}; {check}"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_without_a_service_the_error_says_how_to_start_one(
    code: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("LOCKSTEP_URL", "LOCKSTEP_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path / "nothing"))
    calls: list[Callable[[], object]] = [
        lambda: lockstep.submit(code.train, args=[1]),
        lambda: lockstep.Job("j"),
    ]
    for call in calls:
        with pytest.raises(UnavailableError, match=r"no service runs on .*start one with `lockstep up`"):
            call()
