"""The disks: free space, write access, shared memory, and file systems that break locks."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings
from lockstep.storage import local_path

GIB: Final = 1 << 30
MIB: Final = 1 << 20
LEAST_FREE_BYTES: Final = GIB
LOW_FREE_BYTES: Final = 5 * GIB
FULL_SHARE: Final = 0.95
"""Ray makes no more objects on a file system that is fuller than this."""
LEAST_SHM_BYTES: Final = 100 * MIB
LOW_SHM_BYTES: Final = GIB
_REMOTE: Final = ("nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "fuse.gcsfuse", "fuse.s3fs", "lustre")


@final
@dataclass(frozen=True, kw_only=True)
class Space:
    """The space of a file system.

    Attributes:
        name: what is kept there.
        path: a folder on it.
        total_bytes: its size in bytes.
        free_bytes: what this user may still write, in bytes.
        free_files: how many files may still be made; None if there is no limit.
        is_writable: whether this user may write to the folder.
    """

    name: str
    path: Path
    total_bytes: int
    free_bytes: int
    free_files: int | None
    is_writable: bool


def check_disks(surroundings: Surroundings) -> Result:
    """Looks at the disks of the home, of a local bucket, of temporary files, and of Ray's object store."""
    bucket = local_path(surroundings.bucket) if surroundings.bucket else None
    places = {"the home": surroundings.home.path, "the bucket": None if bucket is None else Path(bucket)}
    places |= {"temporary files": Path(tempfile.gettempdir())}
    spaces = [measure(name, path) for name, path in places.items() if path is not None]
    findings = [finding for space in spaces for finding in judge_space(space)]
    shm = surroundings.root / "dev" / "shm"
    if shm.is_dir():
        findings += judge_shared_memory(measure("shared memory", shm))
    remote = _remote_kind(surroundings)
    if remote is not None:
        findings.append(
            warning(
                "the home is on a file system of another machine",
                received=f"{surroundings.home.path} is on {remote}",
                needed="a local disk: locks and SQLite are not safe there",
                remedy="export LOCKSTEP_HOME=/var/lib/lockstep, or use `lockstep up --database postgresql://...`",
            )
        )
    free = ", ".join(f"{space.free_bytes / GIB:.1f} GiB free for {space.name}" for space in spaces)
    return Result(findings=tuple(findings), detail=free)


def measure(name: str, path: Path) -> Space:
    """Returns the space of a folder's file system; of its nearest parent if the folder does not exist yet."""
    place = next(folder for folder in (path, *path.parents) if folder.is_dir())
    usage, about = shutil.disk_usage(place), os.statvfs(place)
    return Space(
        name=name,
        path=place,
        total_bytes=usage.total,
        free_bytes=usage.free,
        free_files=about.f_favail if about.f_files else None,
        is_writable=os.access(place, os.W_OK | os.X_OK),
    )


def judge_space(space: Space) -> list[Finding]:
    """Returns the faults of a disk."""
    look = f"du -xh --max-depth=2 {space.path} | sort -h | tail"
    found: list[Finding] = []
    if not space.is_writable:
        found.append(
            error(
                f"{space.name} cannot be written",
                received=f"{space.path}, as user {os.geteuid()}",
                needed="a folder of your own on a disk that can be written",
                remedy="export LOCKSTEP_HOME=~/lockstep" if space.name == "the home" else f"ls -ld {space.path}",
            )
        )
    used = 1 - space.free_bytes / max(1, space.total_bytes)
    if space.free_bytes < LEAST_FREE_BYTES:
        found.append(
            error(
                f"the disk of {space.name} is full",
                received=f"{space.free_bytes / MIB:.0f} MiB free at {space.path}",
                needed=f"at least {LEAST_FREE_BYTES / GIB:.0f} GiB",
                remedy=look,
            )
        )
    elif space.free_bytes < LOW_FREE_BYTES or used > FULL_SHARE:
        found.append(
            warning(
                f"the disk of {space.name} is nearly full",
                received=f"{space.free_bytes / GIB:.1f} GiB free at {space.path}, {used:.0%} used",
                needed=f"{LOW_FREE_BYTES / GIB:.0f} GiB, and less than {FULL_SHARE:.0%} used: Ray stops there",
                remedy=look,
            )
        )
    if space.free_files is not None and space.free_files < 10_000:
        found.append(
            error(
                f"the disk of {space.name} has no room for more files",
                received=f"{space.free_files} inodes free at {space.path}",
                needed="at least 10,000",
                remedy=f"du -x --inodes --max-depth=2 {space.path} | sort -n | tail",
            )
        )
    return found


def judge_shared_memory(space: Space) -> list[Finding]:
    """Returns the faults of ``/dev/shm``, which Ray's object store and readers of data use."""
    remedy = f"sudo mount -o remount,size=4G {space.path}   # in a container: docker run --shm-size=4g"
    received = f"{space.free_bytes / MIB:.0f} of {space.total_bytes / MIB:.0f} MiB free"
    if space.free_bytes < LEAST_SHM_BYTES:
        return [
            error(
                "there is too little shared memory for Ray's object store",
                received=received,
                needed=f"at least {LEAST_SHM_BYTES / MIB:.0f} MiB",
                remedy=remedy,
            )
        ]
    if space.total_bytes < LOW_SHM_BYTES:
        return [
            warning(
                "Ray keeps large objects on a disk instead of in shared memory",
                received=received,
                needed=f"{LOW_SHM_BYTES / GIB:.0f} GiB or more",
                remedy=remedy,
            )
        ]
    return []


def _remote_kind(surroundings: Surroundings) -> str | None:
    """Returns the kind of file system of the home if it is another machine's, else None."""
    best, kind = "", ""
    home = str(surroundings.home.path)
    for line in surroundings.read("proc/mounts").splitlines():
        fields = line.split()
        if len(fields) < 3:
            continue
        place = fields[1].replace("\\040", " ")
        is_above = home == place or home.startswith(f"{place.rstrip('/')}/")
        if is_above and len(place) >= len(best):
            best, kind = place, fields[2]
    return kind if kind in _REMOTE else None
