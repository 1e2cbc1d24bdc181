"""What a service or an engine that died has left behind on this machine."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import psutil

from lockstep.client import find_service
from lockstep.clusters.ray.head import FOLDER_PREFIX, EmbeddedHead
from lockstep.doctor.findings import Finding, Result, error, warning
from lockstep.doctor.surroundings import Surroundings
from lockstep.errors import CorruptDataError, counted
from lockstep.home import Home
from lockstep.jobs.running.orders import SPOOL_VARIABLE
from lockstep.processes import ProcessIdentity, find_marked

_SESSION_FILE: Final = "ray/ray_current_cluster"
"""Ray's own note, in the folder of temporary files, of the cluster that a bare ``ray.init()`` joins."""
_CONNECT_S: Final = 1.0
_END: Final = "lockstep down"


def check_leftovers(surroundings: Surroundings) -> Result:
    """Looks for a service that died, for what runs on without one, and for files of dead engines."""
    findings = [*_of_home(surroundings.home), *_of_folders(surroundings.home), *_of_session()]
    return Result(findings=tuple(findings), detail="nothing is left of a dead service or engine")


def _of_home(home: Home) -> Iterator[Finding]:
    if not home.path.is_dir() or find_service(home) is not None or _is_kept(home):
        return
    try:
        document = json.loads(home.address.read_text())
        pid = ProcessIdentity.from_json(document["process"]).pid
    except FileNotFoundError:
        pid = None
    except (OSError, ValueError, KeyError, TypeError, CorruptDataError):
        yield warning(
            "the file that names the service cannot be read",
            received=str(home.address),
            needed="the file that `lockstep up` writes",
            remedy=f"rm {home.address} && lockstep up",
        )
        pid = None
    else:
        yield error(
            "the service died, and nothing restarts it",
            received=f"pid {pid} of {home.address} has ended",
            needed="a service: jobs go on, but nobody records their end",
            remedy="lockstep up",
        )
    head = EmbeddedHead(home).find()
    if head is not None:
        yield warning(
            "an engine runs without a service",
            received=f"Ray of {home.path}, pid {head.pid}",
            needed="a service that uses it, or none of the two",
            remedy="lockstep up" if pid is not None else _END,
        )
        return
    spool = home.spool.resolve()
    marked = find_marked(SPOOL_VARIABLE, accept=lambda mark: Path(mark).resolve().is_relative_to(spool))
    if marked:
        yield warning(
            "programs of jobs run without an engine",
            received=counted(len(marked), "process") + f", such as pid {marked[0].pid}",
            needed="none: their runners end them, unless those were killed too",
            remedy=_END,
        )


def _is_kept(home: Home) -> bool:
    """Whether a process is there that restarts the service of a home, so that it is not dead for long."""
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError, CorruptDataError):
        document = json.loads(home.keeper.read_text())
        return ProcessIdentity.from_json(document["process"]).is_alive
    return False


def _of_folders(home: Home) -> Iterator[Finding]:
    """Yields the folders of engines that ended without removing them."""
    used = _folders_in_use(home)
    left = [
        folder
        for folder in sorted(Path(tempfile.gettempdir()).glob(f"{FOLDER_PREFIX}*"))
        if folder.is_dir() and folder.stat().st_uid == os.geteuid() and folder.name not in used
    ]
    if left:
        names = " ".join(str(folder) for folder in left[:5])
        yield warning(
            "engines that were killed have left files",
            received=f"{counted(len(left), 'folder')}: {names}{' ...' if len(left) > 5 else ''}",
            needed="none: they take space, such as Ray's logs and spilled objects",
            remedy=f"rm -r {names}",
        )


def _folders_in_use(home: Home) -> set[str]:
    """Returns the names of engines' folders that a process of this machine uses, or that the home records."""
    used: set[str] = set()
    with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
        used.add(Path(json.loads((home.engine / "head.json").read_text())["folder"]).name)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            for text in process.cmdline():
                start = text.find(FOLDER_PREFIX)
                if start >= 0:
                    used.add(text[start:].partition("/")[0])
    return used


def _of_session() -> Iterator[Finding]:
    """Yields Ray's note of a cluster that is gone: a bare ``ray.init()`` of a program would try to join it."""
    path = Path(tempfile.gettempdir(), _SESSION_FILE)
    try:
        host, _, port = path.read_text().strip().rpartition(":")
        socket.create_connection((host, int(port)), timeout=_CONNECT_S).close()
    except FileNotFoundError:
        return
    except (OSError, ValueError, OverflowError):
        yield warning(
            "programs that call ray.init() try to join a cluster that is gone",
            received=str(path),
            needed="no such file, or a cluster that runs",
            remedy=f"rm {path}",
        )
