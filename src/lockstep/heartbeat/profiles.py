"""Profiles on demand: the request that a runner leaves for its program, and what the program reports about it.

The runner writes a request to a file beside the heartbeats' socket. The program looks for it between two steps, which
costs it a few microseconds. Its heartbeats carry the report.
"""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self, cast, final

from lockstep.spools import PROFILE_REQUEST

MAX_PROFILE_STEPS: Final = 1000
"""The maximum number of steps of a profile."""

MAX_REQUEST_BYTES: Final = 1024
MAX_PROBLEM_LENGTH: Final = 300
MAX_FILES: Final = 4
_MAX_TEXT: Final = 128
_NAME: Final = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


@final
class ProfileState(StrEnum):
    """The state of a profile."""

    REQUESTED = "requested"
    """The program has not begun it yet: it records from its next training step on."""
    RECORDING = "recording"
    """Its steps are running."""
    UPLOADING = "uploading"
    """Its files are being written to the job's TensorBoard folder."""
    DONE = "done"
    """Its files are in the job's TensorBoard folder."""
    FAILED = "failed"
    """There is no profile."""


@final
@dataclass(frozen=True, kw_only=True)
class ProfileRequest:
    """A request for a profile.

    Attributes:
        request_id: the id of the request.
        num_steps: the number of steps to record, at most `MAX_PROFILE_STEPS`.
        name: the name of the profile's files, without their endings: that of the replica.
    """

    request_id: str
    num_steps: int
    name: str = "profile"

    def to_bytes(self) -> bytes:
        """Returns the request as JSON."""
        return json.dumps({"id": self.request_id, "numSteps": self.num_steps, "name": self.name}).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Self | None:
        """Parses a request; None if it is not one, or was read while it was being written."""
        try:
            document = json.loads(data)
        except (ValueError, RecursionError):
            return None
        if not isinstance(document, dict):
            return None
        fields = cast("dict[str, Any]", document)
        request_id, num_steps = _text(fields.get("id")), fields.get("numSteps")
        name = _text(fields.get("name"))
        if not request_id or type(num_steps) is not int or not 1 <= num_steps <= MAX_PROFILE_STEPS:
            return None
        return cls(request_id=request_id, num_steps=num_steps, name=name) if _NAME.fullmatch(name) else None


@final
@dataclass(frozen=True, kw_only=True)
class ProfileReport:
    """The report of a program, or of its runner, about a profile.

    Attributes:
        request_id: the id of the request.
        state: the state of the profile.
        num_steps: the number of steps: those to record, or those that were recorded once the profile is done.
        folder: the folder with the files, within the job's TensorBoard folder; "" before the end.
        files: the names of the files in the folder.
        problem: why there is no profile; "" if there is none.
    """

    request_id: str
    state: ProfileState
    num_steps: int = 0
    folder: str = ""
    files: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the profile is done, or has failed."""
        return self.state in (ProfileState.DONE, ProfileState.FAILED)

    def to_document(self) -> dict[str, Any]:
        """Returns the report as JSON."""
        return {
            "id": self.request_id,
            "state": self.state.value,
            "numSteps": self.num_steps,
            "folder": self.folder,
            "files": list(self.files),
            "problem": _one_line(self.problem),
        }

    @classmethod
    def from_document(cls, document: object) -> Self | None:
        """Parses a report; None if it is not one, because any code of the program may send it."""
        if not isinstance(document, dict):
            return None
        fields = cast("dict[str, Any]", document)
        request_id, state, num_steps = _text(fields.get("id")), fields.get("state"), fields.get("numSteps")
        files = fields.get("files")
        names = [_text(name) for name in cast("list[object]", files)[:MAX_FILES]] if isinstance(files, list) else []
        if not request_id or state not in tuple(ProfileState) or type(num_steps) is not int or num_steps < 0:
            return None
        return cls(
            request_id=request_id,
            state=ProfileState(state),
            num_steps=min(num_steps, MAX_PROFILE_STEPS),
            folder=_text(fields.get("folder")),
            files=tuple(name for name in names if name),
            problem=_one_line(str(fields.get("problem") or "")),
        )


def _text(value: object) -> str:
    return value[:_MAX_TEXT] if isinstance(value, str) else ""


def _one_line(text: str) -> str:
    """Returns a text that a heartbeat has room for."""
    return " ".join(text.encode("ascii", "replace").decode().split())[:MAX_PROBLEM_LENGTH]


def write_request(spool: Path, request: ProfileRequest) -> None:
    """Writes a request for a program. The file stays the same one, because a container may have it mounted.

    Args:
        spool: the replica's spool folder, to which only its runner writes.
        request: the request.

    Raises:
        OSError: the file cannot be written.
    """
    path = spool / PROFILE_REQUEST
    path.write_bytes(request.to_bytes())
    path.chmod(0o644)  # the program may run as another user


def make_request_file(spool: Path) -> None:
    """Makes the empty file for requests, so that it can be mounted into a container.

    Args:
        spool: the replica's spool folder; nothing happens if it does not exist.
    """
    path = spool / PROFILE_REQUEST
    if spool.is_dir():
        path.write_bytes(b"")
        path.chmod(0o644)


@final
class ProfileRequests:
    """The requests for a program's profiles, as the program reads them.

    Args:
        path: the file with the latest request; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen: tuple[int, int] | None = None
        self._last_id = ""

    def take(self) -> ProfileRequest | None:
        """Returns a request that was not returned before; None if there is none. Costs one look at the file."""
        try:
            status = os.stat(self._path)
            # Writes in quick succession may have the same time, and the file is empty for a moment.
            version = (status.st_mtime_ns, status.st_size)
            if version == self._seen:
                return None
            with self._path.open("rb") as file:
                data = file.read(MAX_REQUEST_BYTES)
        except OSError:
            return None
        request = ProfileRequest.from_bytes(data)
        self._seen = version if request is not None or not data else None  # a part of a request is read again
        if request is None:
            return None
        is_new, self._last_id = request.request_id != self._last_id, request.request_id
        return request if is_new else None
