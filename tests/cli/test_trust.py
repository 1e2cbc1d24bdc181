"""Keys and TLS from the command line, with a real service."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import trustme

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


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    folder = made.code.parent
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "key.pem").chmod(0o600)
    (made.code / "spy.py").write_text(PROGRAM)
    made.env["LOCKSTEP_TOKEN"] = "lsk_of_whoever_starts_it"
    tls = ("--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem"))
    error = made.run("up", "--host", "0.0.0.0", *tls, code=64)
    assert "make one first with `lockstep keys create`" in error
    assert made.processes() == [], "nothing was started for it"
    made.run("up", *tls)
    del made.env["LOCKSTEP_TOKEN"]
    yield made
    made.run("down", "--cancel")


def _elsewhere(machine: Machine, key: Path, **env: str) -> Machine:
    """Returns the command line as it is on a machine that has no home of the service."""
    made = Machine(machine.code.parent / f"elsewhere_{key.name}")
    port = json.loads(machine.home.address.read_text())["url"].rpartition(":")[2]
    made.env |= {
        "LOCKSTEP_URL": f"https://localhost:{port}",
        "LOCKSTEP_TOKEN_FILE": str(key),
        "LOCKSTEP_CA_CERT": str(machine.code.parent / "ca.pem"),
        **env,
    }
    return made


def test_a_key_opens_its_project_from_elsewhere_until_it_is_revoked(machine: Machine, tmp_path: Path) -> None:
    assert machine.run("whoami").startswith(
        "home, operator of all projects, by the home's token, at https://127.0.0.1:"
    )
    file = tmp_path / "key"
    flags = ("--scope", "submitter", "--project", "vision", "--output", str(file))
    assert machine.run("keys", "create", "ann", *flags) == ""
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    key_id = file.read_text()[:16]
    shown = machine.run("keys", "list")
    assert key_id in shown
    for text in (shown, machine.home.service_log.read_text()):
        assert file.read_text().strip() not in text
    elsewhere = _elsewhere(machine, file, LOCKSTEP_PROJECT="vision")
    assert f"ann, submitter of project vision, by key {key_id}, at https://localhost:" in elsewhere.run("whoami")
    assert elsewhere.run("jobs") == "no jobs\n"
    assert "knows of no project 'local'" in elsewhere.run("jobs", "--project", "local", code=12)
    assert "this is for a key of scope operator" in elsewhere.run("status", code=21)
    assert "submitted by: ann" in elsewhere.run("submit", "far", *elsewhere.package(), "--", "1", "0")
    machine.run("keys", "revoke", key_id)
    assert f"key {key_id} of ann was revoked" in elsewhere.run("jobs", code=77)
    assert "revoked by home" in machine.run("keys", "list")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("create", "ann"), 64, "--project or --all-projects, and not both"),
        (("create", "ann", "--project", "a", "--all-projects"), 64, "--project or --all-projects, and not both"),
        (("create", "home", "--all-projects"), 64, "label; received 'home'"),
        (("create", "a b", "--all-projects"), 78, "label"),
        (("create", "ann", "--all-projects", "--output", "/nowhere/key"), 73, "/nowhere/key cannot be written"),
        (("revoke", "lsk_0123456789ab"), 12, "there is no key 'lsk_0123456789ab'"),
        (("revoke", "lsk_0123456789ab_secret"), 64, "KEY is not a key's public name"),
    ],
)
def test_what_is_no_key_is_said_in_a_line(
    machine: Machine, arguments: tuple[str, ...], code: int, message: str
) -> None:
    error = machine.run("keys", *arguments, code=code)
    assert message in error
    assert len(error.splitlines()) == 1
    assert "secret" not in error


def test_a_file_that_is_there_is_not_written_over_and_one_for_a_key_that_is_refused_goes(
    machine: Machine, tmp_path: Path
) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("mine")
    assert "not there yet" in machine.run("keys", "create", "ann", "--all-projects", "--output", str(there), code=64)
    assert there.read_text() == "mine"
    machine.run("keys", "create", "a b", "--all-projects", "--output", str(new), code=78)
    assert not new.exists()


def _over(job: dict[str, Any]) -> bool:
    return job["state"] in ("SUCCEEDED", "FAILED", "CANCELLED")


def test_a_program_is_given_no_key_of_the_service_or_the_engine(machine: Machine) -> None:
    key = machine.run("keys", "create", "ann", "--all-projects", "--scope", "operator").strip()
    machine.env["LOCKSTEP_TOKEN"] = key
    machine.run("submit", "spy", "--package-path", str(machine.code), "--module-name", "spy", "--async")
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
        "the key of whoever started the service": "lsk_of_whoever_starts_it",
        "the key of TLS": (machine.code.parent / "key.pem").read_text(),
    }
    everything = json.dumps(found)
    for what, secret in secrets.items():
        assert secret.strip(), what
        assert json.dumps(secret.strip())[1:-1] not in everything, what
    service = psutil.Process(machine.service_pid())
    assert not [name for name in service.environ() if name.startswith("LOCKSTEP_TOKEN")]


def test_the_summary_says_who_submitted_and_who_cancelled(machine: Machine) -> None:
    machine.submit("told", lines=10_000, pause_s=0.05)
    machine.run("cancel", "told")
    machine.wait("told", _over)
    shown = machine.run("describe", "told")
    assert "submitted by: home" in shown
    assert "ended: CANCELLED(by home)" in shown
