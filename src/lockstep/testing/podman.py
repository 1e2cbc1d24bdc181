"""A real podman with its own store, an image with only busybox, and a real registry on the loopback interface."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, final

from lockstep.processes.ports import reserve_address

BUSYBOX: Final = """
FROM scratch
COPY busybox /bin/busybox
RUN ["/bin/busybox", "--install", "-s", "/bin"]
USER 1000:1000
ENTRYPOINT ["/bin/sh", "-c"]
"""
_TIMEOUT_S: Final = 30.0


def why_no_podman() -> str | None:
    """Returns the reason why this machine cannot run real containers; None if it can."""
    for name in ("podman", "busybox"):
        if shutil.which(name) is None:
            return f"{name} is not installed"
    path = shutil.which("busybox") or ""
    command = ["file", "-L", path] if shutil.which("file") else ["ldd", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    is_static = any(word in done.stdout + done.stderr for word in ("statically linked", "not a dynamic"))
    return None if is_static else "busybox is not linked statically (Debian: busybox-static)"


@final
class Podman:
    """A podman that keeps all its data in one folder.

    Args:
        folder: an empty folder.

    Attributes:
        env: the environment variables that make podman use this store.
    """

    def __init__(self, folder: Path) -> None:
        runtime = "runc" if shutil.which("runc") else "crun"
        engine = f'[engine]\nruntime="{runtime}"\ncgroup_manager="cgroupfs"\nevents_logger="file"\n'
        (folder / "containers.conf").write_text(engine)
        store = f'[storage]\ndriver="overlay"\ngraphroot="{folder}/graph"\nrunroot="{folder}/run"\n'
        (folder / "storage.conf").write_text(store)
        self.env = {
            "CONTAINERS_CONF": str(folder / "containers.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "BUILDAH_ISOLATION": "chroot",  # in a sandbox, builds only work in this way
            "LOCKSTEP_CONTAINER_ENGINE": "podman",
        }
        self._folder = folder

    def run(self, *arguments: str) -> str:
        """Runs podman, and returns its output."""
        done = subprocess.run(
            ["podman", *arguments], env={**os.environ, **self.env}, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{arguments}: {done.stderr}"
        return done.stdout

    def busybox(self) -> Path:
        """Returns a folder from which an image of busybox can be built."""
        made = self._folder / "busybox"
        made.mkdir()
        shutil.copy(shutil.which("busybox") or "", made / "busybox")
        (made / "Containerfile").write_text(BUSYBOX)
        return made

    def containers(self) -> list[str]:
        """Returns the ids of all containers."""
        return self.run("ps", "--all", "--quiet").split()

    def close(self) -> None:
        """Removes all data in the store."""
        subprocess.run(
            ["podman", "system", "reset", "--force"], env={**os.environ, **self.env}, capture_output=True, check=False
        )

    @contextmanager
    def registry(self) -> Iterator[str]:
        """Runs Debian's docker-registry on the loopback interface, and yields its address."""
        held = reserve_address("127.0.0.1")
        address = held.address
        config = self._folder / "registry.yml"
        store = f"storage: {{filesystem: {{rootdirectory: {self._folder}/registry}}}}"
        config.write_text(f"version: 0.1\nlog: {{level: error}}\n{store}\nhttp: {{addr: '{address}'}}\n")
        process = subprocess.Popen(
            ["docker-registry", "serve", str(config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            host, port = address.split(":")
            deadline = time.monotonic() + _TIMEOUT_S
            while True:
                with socket.socket() as client:
                    if client.connect_ex((host, int(port))) == 0:
                        break
                assert process.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield address
        finally:
            process.kill()
            process.wait()
            held.close()
