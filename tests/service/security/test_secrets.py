"""Secrets: given to programs by name, kept encrypted, read back by nobody."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from tests.service.postgres import PASSWORD, Server

from lockstep.errors import ConfigError, CorruptDataError, InvalidInputError, NotFoundError
from lockstep.jobs.input.documents import parse_training_input
from lockstep.jobs.running.states import JobState
from lockstep.jobs.security.access import Scope
from lockstep.service.security import vault as vault_module
from lockstep.service.security.vault import Vault
from lockstep.service.store import SecretStore, open_database
from lockstep.testing.bench import Bench
from lockstep.testing.served import Served

SECRET = "correct horse battery"
PROGRAM = """
import os
assert len(os.environ["PASSWORD"]) == 21
print("it is", os.environ["PASSWORD"])
open(os.environ["AIP_MODEL_DIR"] + ".txt", "w").write(os.environ["PASSWORD"][::-1])
"""

SERVED = """
import json, os, pathlib, signal, sys, time
folder = pathlib.Path({folder!r})
task = json.loads(os.environ["TF_CONFIG"])["task"]
token = os.environ["LOCKSTEP_CLUSTER_TOKEN"]
print("the token is", token, flush=True)
start = folder / ("second" if (folder / "again").exists() else "first")
start.mkdir(exist_ok=True)
(start / f"{{task['type']}}-{{task['index']}}-{{os.getpid()}}").write_text(token[::-1])
if task["type"] == "worker":
    if len(list(start.glob("worker-*"))) == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit()
while task["type"] != "master" or len(list(start.iterdir())) < 4:
    time.sleep(0.01)
if start.name == "first":
    (folder / "again").touch()
    sys.exit(138)  # another start of the whole job
"""
SERVED_JOB = {
    "scaleTier": "CUSTOM",
    **{f"{role}Type": "n1-standard-4" for role in ("master", "worker", "parameterServer")},
    "workerCount": "1",
    "parameterServerCount": "1",
}


def _holding(folder: Path, text: str = SECRET) -> list[Path]:
    """Returns the files below a folder that hold a text."""
    return [path for path in folder.rglob("*") if path.is_file() and text.encode() in path.read_bytes()]


def test_a_program_has_the_value_and_home_and_bucket_have_it_nowhere(bench: Bench) -> None:
    bench.vault.put(project="local", name="pass-word", value=SECRET, principal_label="ann")
    bench.home.bucket.joinpath("job").mkdir(parents=True)
    bench.create("job", PROGRAM, lockstep={"secrets": {"PASSWORD": "pass-word"}})
    job = bench.step_until_over("job")
    assert job.state is JobState.SUCCEEDED, job.error_message
    assert _holding(bench.home.path, SECRET[::-1]), "the program had it"
    assert _holding(bench.home.path, "it is ***"), "its log says that there was something"
    assert _holding(bench.home.path) == []
    assert SECRET not in repr(job) + repr(bench.store.events(job.uid))
    assert stat.S_IMODE(bench.home.secret_key.stat().st_mode) == 0o600


def test_each_start_has_the_value_of_its_time(bench: Bench, tmp_path: Path) -> None:
    policy = {"condition": "ON_FAILURE", "maxRestarts": 1}
    script = (
        "import os, pathlib, sys, time\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
        "sys.exit(os.environ['PASSWORD'] != 'second one')"
    )
    bench.vault.put(project="local", name="p", value="the first", principal_label="ann")
    bench.create("job", script, lockstep={"secrets": {"PASSWORD": "p"}, "restartPolicy": policy})
    bench.step_until_state("job", JobState.RUNNING)
    bench.vault.put(project="local", name="p", value="second one", principal_label="ann")
    (tmp_path / "go").touch()
    job = bench.step_until_over("job")
    assert (job.state, job.num_restarts) == (JobState.SUCCEEDED, 1)


@pytest.mark.heavy
def test_each_start_beside_parameter_servers_has_a_token_of_its_own(bench: Bench, tmp_path: Path) -> None:
    """The master, the server, and both lives of a worker that is launched again alone."""
    folder = tmp_path / "told"
    folder.mkdir()
    bench.create("job", SERVED.format(folder=str(folder)), **SERVED_JOB)
    job = bench.step_until_over("job")
    assert (job.state, job.attempt, job.num_restarts) == (JobState.SUCCEEDED, 1, 3), job.error_message
    tokens = []
    for start in ("first", "second"):
        told = [path.read_text()[::-1] for path in (folder / start).iterdir()]
        assert len(told) == 4
        tokens += set(told)
    assert len(tokens) == 2, "one for each start"
    assert all(len(token) == 64 for token in tokens)
    assert _holding(bench.home.path, "the token is ***")
    assert [_holding(bench.home.path, token) for token in tokens] == [[], []]
    assert not any(token in repr(job) + repr(bench.store.events(job.uid)) for token in tokens)


def test_a_secret_that_is_gone_when_the_job_starts_ends_it(bench: Bench) -> None:
    bench.create("job", PROGRAM, lockstep={"secrets": {"PASSWORD": "gone"}})
    job = bench.step_until_over("job")
    assert job.state is JobState.FAILED
    assert "project local has no secret 'gone'" in (job.error_message or "")
    assert job.end_reason == "USER_ERROR"


@pytest.mark.parametrize("value", ["short", "x" * 70_000, "with a \0 in it"], ids=["short", "long", "nul"])
def test_values_that_cannot_be_are_refused_without_being_shown(bench: Bench, value: str) -> None:
    with pytest.raises(InvalidInputError, match="8 to 65536 bytes") as raised:
        bench.vault.put(project="local", name="p", value=value, principal_label="ann")
    assert value not in str(raised.value)


def test_two_first_secrets_at_once_have_one_key(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    both_make_one = threading.Barrier(2)
    make = os.open

    def make_slowly(*arguments: Any) -> int:
        with contextlib.suppress(threading.BrokenBarrierError):
            both_make_one.wait(0.3)
        return make(*arguments)

    monkeypatch.setattr(vault_module.os, "open", make_slowly)
    names = {"ONE": "one", "OTHER": "other"}
    setting = [
        threading.Thread(
            target=bench.vault.put, kwargs={"project": "local", "name": name, "value": SECRET, "principal_label": "ann"}
        )
        for name in names.values()
    ]
    for thread in setting:
        thread.start()
    for thread in setting:
        thread.join()
    assert bench.vault.values(project="local", names=names) == dict.fromkeys(names, SECRET)


def test_a_secret_that_two_set_at_once_is_set(postgres: Server) -> None:
    url = postgres.url(postgres.create_database())
    first, second = (open_database(url, password=PASSWORD) for _ in range(2))
    others = [b"theirs"]

    @event.listens_for(first, "before_cursor_execute")
    def come_in_between(_connection: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if statement.startswith("INSERT") and others:
            SecretStore(second).put(project="p", name="n", sealed=others.pop(), principal_label="bob")

    store = SecretStore(first)
    try:
        store.put(project="p", name="n", sealed=b"mine", principal_label="ann")
        assert (store.sealed(project="p", name="n"), others) == (b"mine", [])
    finally:
        first.dispose()
        second.dispose()


def test_a_value_opens_with_its_key_and_under_its_name_alone(bench: Bench, tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{bench.home.database}")
    store = SecretStore(database)
    bench.vault.put(project="local", name="p", value=SECRET, principal_label="ann")
    other = Vault(store=store, key_path=tmp_path / "other-key")
    with pytest.raises(CorruptDataError, match=r"other-key.*set it again"):
        other.values(project="local", names={"X": "p"})
    for project, name in (("local", "q"), ("other", "p")):
        store.put(project=project, name=name, sealed=store.sealed(project="local", name="p"), principal_label="eve")
        with pytest.raises(CorruptDataError, match="not encrypted with the key"):
            bench.vault.values(project=project, names={"X": name})
    assert bench.vault.values(project="local", names={"X": "p"}) == {"X": SECRET}
    database.dispose()


def test_the_same_value_twice_is_not_the_same_in_the_database(bench: Bench) -> None:
    database = open_database(f"sqlite:///{bench.home.database}")
    store = SecretStore(database)
    sealed = set()
    for _ in range(2):
        bench.vault.put(project="local", name="p", value=SECRET, principal_label="ann")
        sealed.add(store.sealed(project="local", name="p"))
    assert len(sealed) == 2
    assert [record.name for record in store.list(project="local")] == ["p"]
    database.dispose()


def test_secrets_over_rest(service: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    submitter = service.client(service.key(Scope.SUBMITTER, project="a"))
    viewer = service.client(service.key(Scope.VIEWER, project="a"))
    path = "/v1/projects/a/secrets"
    assert submitter.put(f"{path}/p", json={"value": SECRET}).json() == {"name": "p"}
    assert viewer.put(f"{path}/p", json={"value": SECRET}).status_code == 403
    assert viewer.delete(f"{path}/p").status_code == 403
    (listed,) = viewer.get(path).json()["secrets"]
    assert listed["name"] == "p"
    assert set(listed) == {"name", "createTime", "updateTime", "updatedBy"}
    assert viewer.get(f"{path}/p").status_code == 405, "no route reads a value"
    for body in ({"value": 12345678}, {"value": SECRET, "more": SECRET}, {"values": SECRET}, {}):
        answer = submitter.put(f"{path}/p", json=body)
        assert answer.status_code == 400
        assert SECRET not in answer.text
        assert "12345678" not in answer.text
    assert submitter.put(f"{path}/-p", json={"value": SECRET}).status_code == 400
    assert submitter.delete(f"{path}/p").status_code == 200
    assert submitter.delete(f"{path}/p").status_code == 404
    assert viewer.get(path).json() == {"secrets": []}
    assert "secret p of project a was set by" in caplog.text
    assert SECRET not in caplog.text


def test_a_job_with_an_unknown_secret_is_refused_and_a_dry_run_shows_names(service: Served) -> None:
    asked = {"pythonModule": "train", "lockstep": {"secrets": {"PASSWORD": "p"}}}
    body = {"jobId": "j", "trainingInput": asked}
    jobs = "/v1/projects/a/jobs"
    service.http.put("/v1/projects/b/secrets/p", json={"value": SECRET})
    message = service.http.post(jobs, json=body).json()["error"]["message"]
    assert "trainingInput.lockstep.secrets.PASSWORD: project a has no secret 'p'; set it with" in message
    assert "has no secret 'p'" in service.http.post(jobs, json=body, params={"validateOnly": "true"}).json()["problem"]
    service.http.put("/v1/projects/a/secrets/p", json={"value": SECRET})
    preview = service.http.post(jobs, json=body, params={"validateOnly": "true"})
    assert "problem" not in preview.json()
    assert preview.json()["replicas"][0]["environment"]["PASSWORD"] == "(secret p)"
    created = service.http.post(jobs, json=body)
    assert created.status_code == 200
    assert SECRET not in preview.text + created.text


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"secrets": {"A": "p"}, "env": {"worker": {"A": "x"}}}, r"lockstep\.secrets\.A.*env\.worker has it too"),
        ({"secrets": {"A": "no name"}}, "a secret's name"),
        ({"secrets": {"LOCKSTEP_X": "p"}}, "another name: Lockstep itself sets LOCKSTEP_X"),
        ({"secrets": ["p"]}, "pairs of a name"),
    ],
    ids=["variable-twice", "name", "own-variable", "list"],
)
def test_what_a_job_cannot_ask_for(own: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_training_input({"trainingInput": {"pythonModule": "m", "lockstep": own}}, source="c.yaml")


def test_a_removed_secret_is_unknown(bench: Bench) -> None:
    bench.vault.put(project="local", name="p", value=SECRET, principal_label="ann")
    bench.vault.remove(project="local", name="p")
    with pytest.raises(NotFoundError, match="see `lockstep secrets list`"):
        bench.vault.remove(project="local", name="p")
