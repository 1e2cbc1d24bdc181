"""TLS and keys from the command line, with a real service that others reach.

`tests/service/test_listening.py` has the same over a bench, without a process and an engine of its own.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from lockstep.testing.machine import Machine


@pytest.fixture(scope="module")
def encrypted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    made = Machine(tmp_path_factory.mktemp("machine"))
    folder = made.code.parent
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(str(folder / "certificate.pem"))
    issued.private_key_pem.write_to_path(str(folder / "key.pem"))
    (folder / "key.pem").chmod(0o600)
    tls = ("--tls-certificate", str(folder / "certificate.pem"), "--tls-key", str(folder / "key.pem"))
    error = made.run("up", "--host", "0.0.0.0", *tls, code=64)
    assert "make one first with `lockstep keys create`" in error
    assert made.processes() == [], "nothing was started for it"
    made.run("up", *tls)
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


@pytest.mark.heavy
def test_a_key_opens_its_project_from_elsewhere_until_it_is_revoked(encrypted: Machine, tmp_path: Path) -> None:
    machine = encrypted
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
    assert "no project 'local' for this key" in elsewhere.run("jobs", "--project", "local", code=12)
    assert "this is for a key of scope operator" in elsewhere.run("status", code=21)
    assert "submitted by: ann" in elsewhere.run("submit", "far", *elsewhere.package(), "--", "1", "0")
    machine.run("keys", "revoke", key_id)
    assert f"key {key_id} of ann was revoked" in elsewhere.run("jobs", code=77)
    assert "revoked by home" in machine.run("keys", "list")
