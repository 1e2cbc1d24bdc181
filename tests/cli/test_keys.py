"""Keys from the command line, with a real service, and what a program is given of them."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.cli.keys import create
from lockstep.cli.keys.create import keep
from lockstep.errors import StorageWriteError, UnavailableError
from lockstep.testing.machine import Machine

PROGRAM = """
import json, os, pathlib
found = {"environment": dict(os.environ), "files": {}, "ancestors": []}
folders = [pathlib.Path.cwd(), pathlib.Path(os.environ["LOCKSTEP_SPOOL"])]
for path in (file for folder in folders for file in folder.rglob("*") if file.is_file()):
    found["files"][str(path)] = path.read_bytes().decode(errors="replace")
for descriptor in pathlib.Path("/proc/self/fd").iterdir():
    if descriptor.exists() and descriptor.is_file():
        found["files"][str(descriptor.resolve())] = descriptor.read_bytes().decode(errors="replace")
pid = os.getpid()
while pid > 1:
    process = pathlib.Path(f"/proc/{pid}")
    try:
        environment = (process / "environ").read_text()
    except PermissionError:  # another user's process: all the better
        environment = ""
    found["ancestors"].append([environment, (process / "cmdline").read_text()])
    pid = int((process / "stat").read_text().rpartition(")")[2].split()[1])
results = pathlib.Path(os.environ["AIP_MODEL_DIR"])
results.mkdir(parents=True, exist_ok=True)
(results / "found.json").write_text(json.dumps(found))
"""


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "ann"), 64, "either --project or --all-projects"),
        (("create", "ann", "--project", "a", "--all-projects"), 64, "either --project or --all-projects"),
        (("create", "home", "--all-projects"), 64, "label; received 'home'"),
        (("create", "a b", "--all-projects"), 78, "label"),
        (("create", "ann", "--all-projects", "--scope", "caller"), 64, "--model is for keys of scope caller"),
        (("create", "ann", "--project", "a", "--model", "m", "--scope", "viewer"), 64, "--model is for keys of scope"),
        (("create", "ann", "--project", "a", "--version", "v1"), 64, "--version needs --model"),
        (("create", "ann", "--project", "a", "--model", "m"), 12, "project a has no model 'm'"),
        (("create", "ann", "--all-projects", "--model", "m"), 78, "a caller's key is for one model of one project"),
        (("create", "ann", "--all-projects", "--output", "/nowhere/key"), 73, "/nowhere/key cannot be written"),
        (("revoke", "lsk_0123456789ab"), 12, "there is no key 'lsk_0123456789ab'"),
        (("revoke", "lsk_0123456789ab_secret"), 64, "KEY is not a key's id"),
    ],
)
def test_what_is_no_key_is_said_in_a_line(
    refuse: Callable[..., str], arguments: tuple[str, ...], code: int, message: str
) -> None:
    error = refuse("keys", *arguments, code=code)
    assert message in error
    assert len(error.splitlines()) == 1
    assert "secret" not in error


def test_a_file_that_is_there_is_not_written_over_and_one_for_a_key_that_is_refused_goes(
    machine: Machine, tmp_path: Path
) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("mine")
    assert "does not exist yet" in machine.run(
        "keys", "create", "ann", "--all-projects", "--output", str(there), code=64
    )
    assert there.read_text() == "mine"
    machine.run("keys", "create", "a b", "--all-projects", "--output", str(new), code=78)
    assert not new.exists()


def test_a_key_that_no_file_takes_is_named_and_not_shown() -> None:
    descriptor = os.open("/dev/full", os.O_WRONLY)
    made = {"key": "lsk_0123456789ab", "secret": "lsk_0123456789ab_secret"}
    with pytest.raises(StorageWriteError, match=r"No space left .*; the key is lost; .*revoke lsk_0123456789ab`"):
        keep(made, descriptor=descriptor, path=Path("ann.key"))


class _DyingService:
    """A client of a service that creates a key, and then dies."""

    def __enter__(self) -> _DyingService:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def create_key(self, **_: object) -> dict[str, Any]:
        return {"key": "lsk_0123456789ab", "secret": "lsk_0123456789ab_secret", "expireTime": None}

    def service(self) -> dict[str, Any]:
        raise UnavailableError("the service does not respond")


@pytest.mark.parametrize("to_file", [False, True], ids=["printed", "to-a-file"])
def test_a_key_is_kept_if_the_service_dies_after_creating_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, to_file: bool
) -> None:
    monkeypatch.setattr(create, "connect", _DyingService)
    file = tmp_path / "key"
    options = ["--output", str(file)] if to_file else []
    result = CliRunner().invoke(app, ["keys", "create", "ann", "--all-projects", *options])
    assert result.exit_code == 0
    assert (file.read_text() if to_file else result.stdout) == "lsk_0123456789ab_secret\n"


def _over(job: dict[str, Any]) -> bool:
    return job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")


def test_a_program_is_given_no_key_of_the_service_or_the_engine(machine: Machine, tmp_path: Path) -> None:
    key = machine.run("keys", "create", "ann", "--all-projects", "--scope", "operator").strip()
    machine.env["LOCKSTEP_TOKEN"] = key
    code = tmp_path / "code"
    code.mkdir()
    (code / "spy.py").write_text(PROGRAM)
    machine.run("submit", "spy", "--package-path", str(code), "--module-name", "spy", "--async")
    del machine.env["LOCKSTEP_TOKEN"]
    job = machine.wait("spy", _over)
    assert (job["state"], job["lockstep"]["submittedBy"]) == ("SUCCEEDED", "ann"), machine.run("logs", "spy")
    found = json.loads(Path(job["lockstep"]["outputs"]["model"], "found.json").read_text())
    assert found["environment"]["LOCKSTEP_SPOOL"].startswith(str(machine.home.spool))
    assert len(found["ancestors"]) > 2, "its runner, and what started that"
    secrets = {
        "the home's token": machine.home.token.read_text(),
        "the engine's token": (machine.home.engine / "ray-token").read_text(),
        "an operator's key": key,
    }
    everything = json.dumps(found)
    for what, secret in secrets.items():
        assert secret.strip(), what
        assert json.dumps(secret.strip())[1:-1] not in everything, what
