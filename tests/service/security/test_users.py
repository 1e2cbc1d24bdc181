"""Programs as users of their own: what they cannot read, and that their results arrive."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import psutil
import pytest
from tests.runner.python_environment.wheels import index_of, make_wheel
from tests.runner.test_shell_server import Talk
from tests.service.security.confined import IS_ROOT, POOL, Place

from lockstep.errors import InvalidInputError
from lockstep.home import Home
from lockstep.jobs.running.shell_frames import Terminal
from lockstep.jobs.running.states import JobEvent, JobState
from lockstep.service.security import users
from lockstep.service.security.job_folders import JobFolders
from lockstep.service.security.users import UserPool, decide_users
from lockstep.service.store import JobRecord
from lockstep.submission.packing import stage_folder
from lockstep.testing.bench import Bench

PROGRAM = """
import json, os, pathlib, subprocess, sys, time
tried = json.loads(pathlib.Path("tried.json").read_text())
def attempt(action):
    try:
        return repr(action())[:80]
    except PermissionError:
        return None
    except FileNotFoundError:
        return "absent"
outcome = {path: attempt(lambda: open(path, "rb").read(50)) for path in tried["read"]}
outcome |= {"list " + path: attempt(lambda: os.listdir(path)) for path in tried["list"]}
outcome |= {"write " + path: attempt(lambda: open(path, "a").close()) for path in tried["write"]}
outcome["kill"] = attempt(lambda: os.kill(tried["pid"], 0))
outcome["root"] = attempt(lambda: os.setuid(0))
about = {"ids": [os.getuid(), os.geteuid(), os.getgid(), os.getgroups()], "home": os.environ["HOME"],
         "no_new_privs": [line for line in open("/proc/self/status") if line.startswith("NoNewPrivs")],
         "core": __import__("resource").getrlimit(__import__("resource").RLIMIT_CORE)}
pathlib.Path(os.environ["HOME"], "mine").write_text("x")
pathlib.Path(os.environ["TMPDIR"], "mine").write_text("x")
model = pathlib.Path(os.environ["AIP_MODEL_DIR"])
model.mkdir(exist_ok=True)
(model / "report.json").write_text(json.dumps({"outcome": outcome, "about": about}))
from lockstep.heartbeat import HEARTBEAT_VARIABLE
import socket
from lockstep.local_sockets import short_address
with short_address(pathlib.Path(os.environ[HEARTBEAT_VARIABLE])) as address:
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b'{"step": 7}', address)
time.sleep(3)
print("done")
"""


def _submit(
    bench: Bench, name: str, script: str, *, files: Mapping[str, str] = MappingProxyType({}), **training_input: Any
) -> JobRecord:
    """Records a job with its outputs where the service puts them."""
    outputs = bench.home.bucket / "local" / "jobs" / name
    code = bench.home.path / "code" / name
    code.mkdir(parents=True)
    for other, text in files.items():
        (code / other).write_text(text)
    (code / "program.py").write_text(script)
    url = stage_folder(code, staging=str(bench.home.bucket))
    kinds = ("model", "checkpoints", "tensorboard", "logs")
    return bench.store.create(
        project="local",
        job_id=name,
        training_input={"pythonModule": "program", "packageUris": [url], **training_input},
        labels={},
        simulated=False,
        outputs={kind: str(outputs / kind) for kind in kinds},
    )


@IS_ROOT
def test_a_program_reads_nothing_that_is_not_its_own_and_its_results_arrive(confined: Bench) -> None:
    home = confined.home
    other = _submit(confined, "other", "print('a line of the other job')\nimport time; time.sleep(600)")
    running = confined.step_until_state("other", JobState.RUNNING)
    (home.bucket / "local" / "jobs" / "other" / "model" / "weights").write_text("x")
    spool = home.spool / f"{other.uid}-0" / "master-replica-0"
    runner = psutil.Process(int(running.replicas[0].status.pid)).ppid()
    read = [
        *(home.token, home.database, home.engine / "ray-token", home.secret_key),
        *(spool / "work" / "other" / "program.py", spool / "runner.log"),
        *(f"/proc/{pid}/environ" for pid in (os.getpid(), runner, running.replicas[0].status.pid)),
        home.bucket / "local" / "jobs" / "other" / "model" / "weights",
        *(home.bucket / "packages").iterdir(),
    ]
    listed = [
        *(home.path, home.spool, home.bucket, home.bucket / "packages", home.bucket / "local" / "jobs"),
        *(home.bucket / "local" / "jobs" / "other" / kind for kind in ("logs", "model", "checkpoints")),
        *(home.bucket / "local" / "jobs" / "spy" / "logs", spool, spool.parent, home.engine),
    ]
    written = [home.path / "new", home.cache / "new", home.bucket / "local" / "jobs" / "spy" / "new", spool / "new"]
    tried = {
        "read": [str(path) for path in read],
        "list": [str(path) for path in listed],
        "write": [str(path) for path in written],
        "pid": int(running.replicas[0].status.pid),
    }
    _submit(confined, "spy", PROGRAM, files={"tried.json": json.dumps(tried)})
    spied = confined.step_until_over("spy")
    assert spied.state is JobState.SUCCEEDED, spied.error_message
    report = json.loads((home.bucket / "local" / "jobs" / "spy" / "model" / "report.json").read_text())
    could = {name: found for name, found in report["outcome"].items() if found is not None}
    assert could == {}, "what is absent or readable was not refused"
    real, effective, group, groups = report["about"]["ids"]
    assert real == effective == group
    assert real in POOL
    assert groups in ([], [group])
    assert report["about"]["no_new_privs"] == ["NoNewPrivs:\t1\n"]
    assert report["about"]["core"] == [0, 0]
    assert report["about"]["home"].startswith(str(home.spool))
    assert not Path(report["about"]["home"]).exists()
    assert spied.replicas[0].status.progress is not None, "its heartbeat arrived"
    _assert_closed(confined, "spy")
    confined.store.advance(other.uid, JobEvent.CANCEL_REQUESTED, detail="in the test", end_reason="CANCELLED")
    confined.step_until_over("other")
    _assert_closed(confined, "other")


def _assert_closed(bench: Bench, name: str) -> None:
    for kind in ("model", "checkpoints", "tensorboard"):
        found = (bench.home.bucket / "local" / "jobs" / name / kind).stat()
        assert (found.st_uid, stat.S_IMODE(found.st_mode)) == (os.geteuid(), 0o700)


@IS_ROOT
@pytest.mark.parametrize(
    "terminal", [None, pytest.param(Terminal(), marks=pytest.mark.heavy)], ids=["pipes", "terminal"]
)
def test_a_shell_is_the_programs_user_too(confined: Bench, terminal: Terminal | None) -> None:
    job = _submit(confined, "shelled", "import time; time.sleep(600)", enableWebAccess=True)
    confined.step_until_state("shelled", JobState.RUNNING)
    spool = confined.home.spool / f"{job.uid}-0" / "master-replica-0"
    talk = Talk(
        spool,
        "/bin/sh",
        "-c",
        f"id -u; grep NoNewPrivs /proc/self/status; cat {confined.home.token}",
        terminal=terminal,
    )
    end = talk.until_over()
    assert end.exit_code == 1
    said = (talk.output + talk.errors).decode().split()
    assert int(said[0]) in POOL
    assert said[1:3] == ["NoNewPrivs:", "1"]
    assert "denied" in said[-1]
    confined.store.advance(job.uid, JobEvent.CANCEL_REQUESTED, detail="in the test", end_reason="CANCELLED")
    confined.step_until_over("shelled")


RESUMING = """
import os, pathlib, sys
folder = pathlib.Path(os.environ["AIP_CHECKPOINT_DIR"])
seen = folder / "deep" / "step"
if not seen.exists():
    seen.parent.mkdir()
    seen.write_text("1")
    (folder / "link").symlink_to("/etc/passwd")
    os.kill(os.getpid(), 9)
seen.write_text(seen.read_text() + "2")
"""


@IS_ROOT
def test_a_job_that_starts_again_goes_on_from_its_files_as_whatever_user(
    confined: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = iter((POOL.first, POOL.last))
    monkeypatch.setattr(UserPool, "choose", lambda *_, **__: next(chosen))
    _submit(confined, "again", RESUMING)
    job = confined.step_until_over("again")
    assert (job.state, job.num_restarts) == (JobState.SUCCEEDED, 1), job.error_message
    checkpoints = confined.home.bucket / "local" / "jobs" / "again" / "checkpoints"
    assert (checkpoints / "deep" / "step").read_text() == "12"
    assert (checkpoints / "deep").stat().st_uid == POOL.last
    assert Path("/etc/passwd").stat().st_uid == 0
    _assert_closed(confined, "again")


BUILT = """
import json, os, pathlib, sys, tiny
places = [tiny.__file__, sys.prefix, os.path.dirname(sys.prefix)]
print(tiny.VERSION, [os.access(place, os.W_OK) for place in places], os.stat(tiny.__file__).st_uid)
"""


@IS_ROOT
@pytest.mark.heavy
def test_its_environment_is_built_for_it_and_not_its_to_change(
    confined: Bench, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(place.folder / "wheels", "tiny", "1.0")
    with index_of(place.folder / "wheels", place.folder / "index") as (url, asked):
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        for name in ("first", "second"):
            num_asked = len(asked)
            _submit(confined, name, BUILT, files={"requirements.txt": "tiny\n"})
            job = confined.step_until_over(name)
            assert job.state is JobState.SUCCEEDED, job.error_message
            log = confined.home.bucket / "local" / "jobs" / name / "logs"
            segments = [path.read_text() for path in log.rglob("attempt-*/*.jsonl")]
            texts = [json.loads(line)["text"] for segment in segments for line in segment.splitlines()]
            assert "1.0 [False, False, False] 0" in texts
        assert len(asked) == num_asked, "the second job found it built"
        _submit(confined, "reading", "", files={"requirements.txt": f"-r {confined.home.token}\n"})
        job = confined.step_until_over("reading")
    assert job.end_reason is not None
    assert job.end_reason.startswith("USER_ERROR")
    assert "the-token" not in (job.error_message or "")
    assert not [path for path in confined.home.environments("local").iterdir() if path.suffix in (".home", ".partial")]


@IS_ROOT
def test_what_the_pool_does_not_own_is_not_handed_over(tmp_path: Path) -> None:
    home = Home(path=tmp_path)
    folders = JobFolders(home=home, bucket=str(home.bucket), pool=POOL)
    top = home.bucket / "local" / "jobs" / "j" / "model"
    top.mkdir(parents=True)
    (top / "of-root").touch()
    (top / "of-the-pool").touch()
    os.chown(top / "of-the-pool", POOL.first, POOL.first)
    outputs = {"model": str(top), "logs": str(top.parent / "logs")}
    fields: dict[str, Any] = {"uid": "u", "project": "local", "job_id": "j", "training_input": {}, "labels": {}}
    job = JobRecord(**fields, state=JobState.QUEUED, version=1, create_time_s=0.0, outputs=outputs)
    folders.open(job, user=POOL.last)
    owners = {path.name: path.stat().st_uid for path in (top, *top.iterdir())}
    assert owners == {"model": POOL.last, "of-root": 0, "of-the-pool": POOL.last}
    logs = (top.parent / "logs").stat()
    assert (logs.st_uid, stat.S_IMODE(logs.st_mode)) == (0, 0o700)


@IS_ROOT
def test_what_lies_among_jobs_folders_and_is_none_is_passed_over(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    jobs = home.bucket / "local" / "jobs"
    (jobs / "j" / "model").mkdir(parents=True)
    (jobs / "notes.txt").touch()
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (jobs / "link").symlink_to(tmp_path / "elsewhere")
    JobFolders(home=home, bucket=str(home.bucket), pool=POOL).prepare()
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (jobs / "j", jobs / "j" / "model", tmp_path / "elsewhere")]
    assert modes == [0o711, 0o700, 0o700]


@IS_ROOT
def test_a_place_that_a_program_could_not_write_to_is_refused(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    folders = JobFolders(home=home, bucket=str(home.bucket), pool=POOL)
    (tmp_path / "closed").mkdir(mode=0o755)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o1777)
    for url in (f"{home.bucket}/p/run", f"{tmp_path}/open/run", "gs://b/run"):
        folders.check(url, what="jobDir", project="p")
    for url, allowed in (
        (f"{tmp_path}/closed/run", "a folder that all may write to"),
        (f"{home.bucket}/p", "a folder of its own"),
        (f"{home.bucket}/p/jobs/other/model", "a folder of its own"),
        (f"{home.bucket}/p/request-logs/mine", "a folder of its own"),
        (f"{home.bucket}/q/run", "may not write to"),
    ):
        with pytest.raises(InvalidInputError, match=f"jobDir.*{allowed}"):
            folders.check(url, what="jobDir", project="p")


@IS_ROOT
def test_where_the_service_writes_requests_no_program_can_enter(tmp_path: Path) -> None:
    home = Home(path=tmp_path / "home")
    folders = JobFolders(home=home, bucket=str(home.bucket), pool=POOL)
    own = home.bucket / "p" / "request-logs"
    folders.prepare()
    folders.close_request_logs("p")
    for close in (folders.prepare, lambda: folders.close_request_logs("p")):
        own.chmod(0o755)
        close()
        modes = [stat.S_IMODE(folder.stat().st_mode) for folder in (home.bucket, own.parent, own)]
        assert modes == [0o711, 0o711, 0o700]
        assert own.stat().st_uid == 0


def test_ids_are_spread_kept_and_each_ones_own() -> None:
    first = POOL.choose("a" * 32, taken=())
    assert first is not None
    assert first in POOL
    assert POOL.choose("a" * 32, taken=()) == first
    assert POOL.choose("a" * 32, taken={first}) != first
    assert len({POOL.choose(f"job-{number}", taken=()) for number in range(50)}) > 20
    assert POOL.choose("a", taken=range(POOL.first, POOL.last + 1)) is None


@pytest.mark.parametrize("text", ["", "5", "0-10", "2000-1000", "60000-99999999999", "a-b", "1000-70000"])
def test_pools_that_cannot_be(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--run-as"):
        UserPool.parse(text)


def test_it_is_said_why_programs_run_as_the_services_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(path=tmp_path / "home")
    where: dict[str, Any] = {"home": home, "bucket": str(home.bucket)}
    assert decide_users("none", nodes_are_here=True, **where)[0] is None
    monkeypatch.setattr(users.os, "geteuid", lambda: 1000)
    pool, note = decide_users("auto", nodes_are_here=True, **where)
    assert pool is None
    assert "only root on Linux may start programs as other users" in note
    with pytest.raises(InvalidInputError, match="only root"):
        decide_users("59500-59600", nodes_are_here=True, **where)
    monkeypatch.setattr(users.os, "geteuid", lambda: 0)
    monkeypatch.setattr(users.sys, "platform", "linux")
    assert "nodes are other machines" in decide_users("auto", nodes_are_here=False, **where)[1]


def test_a_folder_that_others_may_not_enter_is_found(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o700)
    before = users.first_closed_folder(tmp_path)
    found = users.first_closed_folder(tmp_path / "closed" / "not-there-yet", ignore=before)
    assert found in (tmp_path / "closed", *tmp_path.parents)
    assert not found.stat().st_mode & 0o001
    assert users.first_closed_folder(Path("/tmp")) is None
    assert users.first_closed_folder(Path("/tmp/not-there-yet")) is None


@pytest.mark.parametrize(
    ("asked", "pool", "user", "nodes_are_here", "warns"),
    [
        ("auto", None, 0, True, True),
        ("auto", POOL, 0, True, False),
        ("none", None, 0, True, False),
        ("auto", None, 1000, True, False),
        ("auto", None, 0, False, False),
    ],
)
def test_the_operator_is_warned_where_programs_run_as_root_unasked(
    asked: str, pool: UserPool | None, user: int, nodes_are_here: bool, warns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(users.os, "geteuid", lambda: user)
    monkeypatch.setattr(users.sys, "platform", "linux")
    warning = users.users_warning(
        asked, pool=pool, note="as root: only root may enter /root", nodes_are_here=nodes_are_here
    )
    assert ("only root may enter /root; anyone who may submit" in warning) is warns
    assert ("--run-as none" in warning) is warns
    assert "\n" not in warning
