"""A replica's spool folder on its node: what lies in it, and what stays of it when the replica is over."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

HEARTBEAT_SOCKET: Final = "heartbeat"
"""The socket for a program's heartbeats."""

SHELL_SOCKET: Final = "shell"
"""The socket for shells."""

LOG_FOLDER: Final = "log"
"""Segments of the log that the bucket did not take yet."""

METRICS_FOLDER: Final = "metrics"
"""Segments of metrics that the bucket did not take yet."""

RUNNER_LOG: Final = "runner.log"
"""What the runner itself had to say."""

STATUS_FILE: Final = "status.json"
"""The last thing that the runner said of its replica, for a service that finds no engine to ask."""

SEGMENT_NAME: Final = re.compile(r"[0-9]+\.jsonl")

KEEP_ATTEMPTS: Final = 3
"""One pass over a folder may take a file that is being written from under its writer, and then the folder."""

URL_FILE: Final = "url"
"""Beside segments: the bucket URL under which they belong."""


def segments_in(folder: Path) -> list[Path]:
    """Returns the segments in a folder, in order; none if it is not there, or goes meanwhile."""
    # Not by `Path.glob`, which fails where the folder goes while it looks: who carries the last segment removes it.
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return [folder / name for name in sorted(names) if SEGMENT_NAME.fullmatch(name)]


def segments_of(spool: Path) -> list[str]:
    """Returns the segments in a replica's spool folder, by their paths in it, in order; none if it is not there."""
    return [f"{name}/{path.name}" for name in (LOG_FOLDER, METRICS_FOLDER) for path in segments_in(spool / name)]


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, for this user alone: a disk that is full takes the beginning of one.

    Raises:
        OSError: the disk refuses.
    """
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_bytes(data)
    partial.replace(path)


def keep_segment(folder: Path, *, url: str, key: str, data: bytes) -> Path:
    """Writes a segment to a folder, beside the bucket's URL; returns its path.

    Args:
        folder: a replica's log or metrics folder; it need not be there.
        url: bucket URL under which the segment is to appear.
        key: its name there.
        data: what it holds.

    Raises:
        OSError: the disk refuses.
    """
    for num_left in reversed(range(KEEP_ATTEMPTS)):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(folder / URL_FILE, url.encode())
            write_whole(folder / key, data)
            break
        except FileNotFoundError:  # whoever carries segments had emptied the folder, and removed it under this
            if not num_left:
                raise
    return folder / key


def forget_status(spool: Path) -> None:
    """Removes what a runner said of its replica, once that is recorded; see `remove_if_over`.

    Args:
        spool: the replica's folder; it need not be there.
    """
    with contextlib.suppress(OSError):
        (spool / STATUS_FILE).unlink(missing_ok=True)
    remove_if_over(spool)


def remove_if_over(spool: Path) -> None:
    """Removes a replica's spool folder, and its gang's, where nothing is in it that anybody needs.

    What cannot be removed stays, and nothing is raised.

    Args:
        spool: the replica's folder; it need not be there.
    """
    with contextlib.suppress(OSError):  # something of the replica, or of its gang, is still there
        if all(path.name == RUNNER_LOG for path in spool.iterdir()):
            (spool / RUNNER_LOG).unlink(missing_ok=True)
            spool.rmdir()
            spool.parent.rmdir()


def clear_spool(spool: Path) -> None:
    """Removes a replica's spool folder, for when the replica is over; what still has to be read stays.

    That is what the bucket did not take, and what the runner said last. What cannot be removed stays, and nothing is
    raised.

    Args:
        spool: the folder; it need not be there.
    """
    try:
        kept = [name for name in (LOG_FOLDER, METRICS_FOLDER) if segments_in(spool / name)]
        kept += [STATUS_FILE] if (spool / STATUS_FILE).exists() else []
    except OSError:  # where it cannot be seen what has to stay, all stays
        return
    if not kept:
        shutil.rmtree(spool, ignore_errors=True)
    with contextlib.suppress(OSError):
        for entry in list(spool.iterdir()) if kept else ():
            if entry.name in (*kept, RUNNER_LOG):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
    with contextlib.suppress(OSError):
        spool.parent.rmdir()  # the gang's folder, when this was its last replica
