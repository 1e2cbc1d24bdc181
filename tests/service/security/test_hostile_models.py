"""Models whose code attacks the service: each gets nowhere, as a job's program would."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from tests.service.security.confined import IS_ROOT, POOL

from lockstep.cli.package import stage_folder
from lockstep.jobs.machines.catalogue import load_catalogue
from lockstep.service.prediction import servers
from lockstep.service.prediction.deployments import Deployments, is_ready
from lockstep.service.security.job_folders import JobFolders
from lockstep.service.settings import sqlite_url
from lockstep.service.store import DemandStore, JobRecord, ModelStore, VersionRecord, VersionState, open_database
from lockstep.testing.bench import Bench

WAIT_S = 60.0

SERVER = """
import json, os, pathlib, subprocess, sys, time
from lockstep.heartbeat import report_progress
def attempt(action):
    try:
        return repr(action())[:80]
    except PermissionError:
        return None
    except FileNotFoundError:
        return "absent"
tried = json.loads(pathlib.Path("model.keras").read_text())
found = {path: attempt(lambda: open(path, "rb").read(50)) for path in tried["read"]}
found |= {"list " + path: attempt(lambda: os.listdir(path)) for path in tried["list"]}
found |= {"write " + path: attempt(lambda: open(path, "a").close()) for path in tried["write"]}
found["root"] = attempt(lambda: os.setuid(0))
found["kill"] = attempt(lambda: os.kill(tried["pid"], 9))
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={})
print("found " + json.dumps([found, sorted(os.environ), os.getresuid(), os.getgroups()]), flush=True)
while True:
    report_progress(waiting=0)
    time.sleep(0.2)
"""


@dataclass(frozen=True, kw_only=True)
class Site:
    """A version in a service whose programs have users of their own."""

    bench: Bench
    models: ModelStore
    deployments: Deployments

    def create(self, model: Path, package: str) -> None:
        self.models.create_model(project="mine", name="m", description="", labels={})
        self.models.create_version(
            project="mine",
            model="m",
            name="v1",
            description="",
            labels={},
            deployment_uri=str(model),
            machine_type="n1-standard-4",
            package_uris=[package],
        )

    @property
    def version(self) -> VersionRecord:
        return self.models.get_version(project="mine", model="m", name="v1")

    @property
    def server(self) -> JobRecord:
        (server,) = self.bench.store.servers()
        return server

    def step_until(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            assert time.monotonic() < deadline, (self.version, self.bench.store.servers())
            self.bench.step()
            self.deployments.step()
            time.sleep(0.02)


@pytest.fixture
def site(confined: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(servers, "SERVER_MODULE", "spy")
    home = confined.home
    database = open_database(sqlite_url(home))
    models = ModelStore(database)
    deployments = Deployments(
        models=models,
        jobs=confined.store,
        demands=DemandStore(database),
        cluster=confined.cluster,
        catalogue=load_catalogue(),
        bucket=str(home.bucket),
        folder=home.spool / "deployments",
        folders=JobFolders(home=home, bucket=str(home.bucket), pool=POOL),
        wake=confined.controller.wake,
    )
    yield Site(bench=confined, models=models, deployments=deployments)
    database.dispose()


@IS_ROOT
def test_a_model_reads_nothing_that_is_not_its_own_and_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = site.bench.home
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    monkeypatch.setenv("LOCKSTEP_TOKEN", "the service's own")
    weights = home.bucket / "theirs" / "models" / "m" / "v1-0" / "model.keras"
    weights.parent.mkdir(parents=True)
    weights.write_text("x")
    JobFolders(home=home, bucket=str(home.bucket), pool=POOL).prepare()
    code = home.path / "code"
    code.mkdir()
    (code / "spy.py").write_text(SERVER)
    package = stage_folder(code, staging=str(home.bucket))
    read = [
        *(home.token, home.database, home.secret_key, home.engine / "ray-token", weights),
        *(f"/proc/{os.getpid()}/environ", *(home.bucket / "packages").iterdir()),
    ]
    listed = [home.path, home.spool, home.bucket, home.bucket / "mine" / "models", home.bucket / "theirs" / "models"]
    tried = {
        "read": [str(path) for path in read],
        "list": [str(path) for path in listed],
        "write": [str(home.path / "new"), str(home.bucket / "mine" / "new"), str(home.spool / "new")],
        "pid": os.getpid(),
    }
    model = home.path / "model.keras"
    model.write_text(json.dumps(tried))
    site.create(model, package)
    site.step_until(lambda: site.version.state is VersionState.READY and is_ready(site.server))
    found, environment, ids, groups = json.loads(_line(site.server).removeprefix("found "))
    assert {name: value for name, value in found.items() if value is not None} == {}
    assert not [name for name in environment if name.startswith(("AWS_", "GOOGLE_", "LOCKSTEP_HOME"))]
    assert "LOCKSTEP_TOKEN" not in environment
    (user,) = set(ids)
    assert user in POOL
    assert groups in ([], [user])
    site.models.begin_delete_version(project="mine", model="m", name="v1")
    site.step_until(lambda: site.models.list_versions() == [])
    theirs = [process for process in psutil.process_iter(["uids", "status"]) if user in process.info["uids"]]
    assert not [process for process in theirs if process.info["status"] != psutil.STATUS_ZOMBIE]


def _line(server: JobRecord) -> str:
    deadline = time.monotonic() + WAIT_S
    while True:
        for path in Path(server.outputs["logs"]).rglob("*.jsonl"):
            for line in path.read_text().splitlines():
                text = str(json.loads(line)["text"])
                if text.startswith("found "):
                    return text
        assert time.monotonic() < deadline
        time.sleep(0.05)
