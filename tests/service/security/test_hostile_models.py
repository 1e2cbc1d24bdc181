"""Models whose code attacks the service: each gets nowhere, as a job's program would."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest
from tests.service.security.confined import IS_ROOT, POOL, WAIT_S, Site, processes_of

from lockstep.runner.compiled_programs import CompiledPrograms
from lockstep.service.prediction import servers
from lockstep.service.prediction.deployments import is_ready
from lockstep.service.security.job_folders import JobFolders
from lockstep.service.store import JobRecord, VersionState
from lockstep.submission.packing import stage_folder

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


@IS_ROOT
def test_a_model_reads_nothing_that_is_not_its_own_and_leaves_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = site.bench.home
    monkeypatch.setattr(servers, "SERVER_MODULE", "spy")
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
    programs = home.cache / "programs" / "another-version"
    (home.spool / "programs").mkdir(mode=0o700)
    (home.spool / "programs" / "jit_forward-cache").write_text("x")
    CompiledPrograms(programs, own=home.spool / "programs", user=None).save()
    read = [
        *(home.token, home.database, home.secret_key, home.engine / "ray-token", weights),
        programs / "jit_forward-cache",
        *(f"/proc/{os.getpid()}/environ", *(home.bucket / "packages").iterdir()),
    ]
    models = [home.bucket / name / "models" for name in ("mine", "theirs")]
    listed = [programs, programs.parent, home.path, home.spool, home.bucket, *models]
    written = [programs, programs.parent, home.path, home.bucket / "mine", home.spool]
    tried = {
        "read": [str(path) for path in read],
        "list": [str(path) for path in listed],
        "write": [*(str(folder / "new") for folder in written), str(programs / "jit_forward-cache")],
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
    site.delete()
    assert processes_of(range(user, user + 1)) == []


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
