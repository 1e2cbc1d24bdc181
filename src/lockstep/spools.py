"""A replica's spool folder on its node: the files in it, and which of them remain after the replica has ended."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from pathlib import Path
from typing import Final

HEARTBEAT_SOCKET: Final = "heartbeat"
"""The name of the socket for a program's heartbeats."""

PROFILE_REQUEST: Final = "profile-request"
"""The name of the file with the latest request for a profile of the program."""

SHELL_SOCKET: Final = "shell"
"""The name of the socket for shells."""

LOG_FOLDER: Final = "log"
"""The folder with log segments that the bucket has not accepted yet."""

METRICS_FOLDER: Final = "metrics"
"""The folder with metrics segments that the bucket has not accepted yet."""

RUNNER_LOG: Final = "runner.log"
"""The runner's own log."""

STATUS_FILE: Final = "status.json"
"""The runner's last report about its replica, for a service that cannot ask the engine."""

SEGMENT_NAME: Final = re.compile(r"[0-9]+\.jsonl")

KEEP_ATTEMPTS: Final = 3
"""How often a segment is written before giving up: a cleanup may remove the file being written, and then the folder."""

URL_FILE: Final = "url"
"""The file beside segments with the bucket URL to upload them to."""


def segments_in(folder: Path) -> list[Path]:
    """Returns the segments in a folder, in order; none if the folder does not exist or is being removed."""
    # `Path.glob` fails if the folder is removed meanwhile, as it is when its last segment has been uploaded.
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return []
    return [folder / name for name in sorted(names) if SEGMENT_NAME.fullmatch(name)]


def segments_of(spool: Path) -> list[str]:
    """Returns the segments in a replica's spool folder, as paths within it, in order; none if it does not exist."""
    return [f"{name}/{path.name}" for name in (LOG_FOLDER, METRICS_FOLDER) for path in segments_in(spool / name)]


def write_whole(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, since a full disk would leave a part of it; only this user can read it.

    Raises:
        OSError: the file cannot be written.
    """
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_bytes(data)
    partial.replace(path)


def keep_segment(folder: Path, *, url: str, key: str, data: bytes) -> Path:
    """Writes a segment to a folder, beside the URL of its bucket, and returns the segment's path.

    Args:
        folder: a replica's log or metrics folder; created if it does not exist.
        url: the bucket URL to upload the segment to.
        key: the segment's key under this URL.
        data: the content of the segment.

    Raises:
        OSError: the segment cannot be written.
    """
    for num_left in reversed(range(KEEP_ATTEMPTS)):
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            write_whole(folder / URL_FILE, url.encode())
            write_whole(folder / key, data)
            break
        except FileNotFoundError:  # the uploader of segments had emptied the folder and removed it meanwhile
            if not num_left:
                raise
    return folder / key


def forget_status(spool: Path) -> None:
    """Removes the runner's last report about its replica, once it is recorded, then calls `remove_if_over`.

    Args:
        spool: the replica's folder; it need not exist.
    """
    with contextlib.suppress(OSError):
        (spool / STATUS_FILE).unlink(missing_ok=True)
    remove_if_over(spool)


def remove_if_over(spool: Path) -> None:
    """Removes a replica's spool folder if it holds nothing but the runner's log, and then its gang's if that is empty.

    Whatever cannot be removed stays, without an error.

    Args:
        spool: the replica's folder; it need not exist.
    """
    with contextlib.suppress(OSError):  # rmdir fails if files of the replica, or of its gang, are still there
        if all(path.name == RUNNER_LOG for path in spool.iterdir()):
            (spool / RUNNER_LOG).unlink(missing_ok=True)
            spool.rmdir()
            spool.parent.rmdir()


def clear_spool(spool: Path) -> None:
    """Removes the spool folder of a replica that has ended, except files that still have to be read.

    These are the segments that the bucket has not accepted, the runner's last report, and beside them the runner's log.
    Whatever cannot be removed stays, without an error.

    Args:
        spool: the replica's folder; it need not exist.
    """
    try:
        kept = [name for name in (LOG_FOLDER, METRICS_FOLDER) if segments_in(spool / name)]
        kept += [STATUS_FILE] if (spool / STATUS_FILE).exists() else []
    except OSError:  # keep everything if it is unknown what has to stay
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
        spool.parent.rmdir()  # the gang's folder, if this was its last replica
