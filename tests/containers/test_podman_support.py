"""What the tests with real containers need of the machine."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import EngineError
from lockstep.processes.ports import reserve_again
from lockstep.testing.podman import Podman, why_no_podman

REGISTRY = """#!/bin/sh
exec python3 - "$2" <<'EOF'
import re, socket, sys, time
host, port = re.search(r"addr: '(.*):(.*)'", open(sys.argv[1]).read()).groups()
with socket.create_server((host, int(port))):
    time.sleep(60)
EOF
"""


def test_without_file_the_busybox_that_is_found_is_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def run(command: list[str], **_options: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 1, stdout="", stderr="not a dynamic executable")

    monkeypatch.setattr(shutil, "which", {"podman": "/opt/podman", "busybox": "/opt/busybox"}.get)
    monkeypatch.setattr(subprocess, "run", run)
    assert why_no_podman() is None
    assert commands == [["ldd", "/opt/busybox"]]


def test_the_port_of_the_registry_is_reserved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "docker-registry"
    program.write_text(REGISTRY)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with Podman(tmp_path).registry() as address, pytest.raises(EngineError, match="was given to another replica"):
        reserve_again(address, timeout_s=0)
    reserve_again(address, timeout_s=0).close()
