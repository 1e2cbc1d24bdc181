"""Defines the entries of a log, as segments store them and as Cloud Logging's ``LogEntry``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, cast, final

from lockstep.jobs.logs.severities import Severity

RESOURCE_TYPE: Final = "ml_job"
"""The resource type of AI Platform Training's log entries."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEntry:
    """An entry as a segment stores it: one line of JSON.

    Attributes:
        seq: the entry's number in the log of its replica and attempt, from 0 without gaps.
        time_s: the time when its first line was read, in seconds since 1970 UTC.
        stream: ``stdout`` or ``stderr``.
        severity: the severity of the entry.
        text: the line, or the lines joined by line feeds.
    """

    seq: int
    time_s: float
    stream: str
    severity: Severity
    text: str


_ENCODER: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def encode_entry(*, seq: int, time_s: float, stream: str, severity: Severity, text: str) -> bytes:
    """Returns an entry as a line of a segment; the arguments are those of `StoredEntry`."""
    document = {"seq": seq, "time_s": time_s, "stream": stream, "severity": severity.name, "text": text}
    return _ENCODER.encode(document).encode() + b"\n"


def decode_entry(line: bytes) -> StoredEntry | None:
    """Parses a line of a segment; returns None if the line is not an entry."""
    try:
        document = cast("dict[str, Any]", json.loads(line.decode()))
        return StoredEntry(
            seq=document["seq"],
            time_s=float(document["time_s"]),
            stream=document["stream"],
            severity=Severity[document["severity"]],
            text=document["text"],
        )
    except (ValueError, TypeError, KeyError):
        return None


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class LogEntry:
    """An entry of a job's log.

    Attributes:
        project: the name of the job's project.
        job: the job's name.
        replica: the replica's name, such as ``worker-replica-1``.
        attempt: the number of the attempt, from 0.
        stored: the entry in the replica's log.
    """

    project: str
    job: str
    replica: str
    attempt: int
    stored: StoredEntry

    @property
    def insert_id(self) -> str:
        """The permanent id of the entry, unique within its job."""
        return f"{self.attempt:03d}.{self.replica}.{self.stored.seq:012d}"

    @property
    def timestamp(self) -> str:
        """The entry's time as in RFC 3339, in UTC, to the microsecond."""
        time = datetime.fromtimestamp(self.stored.time_s, tz=UTC)
        return time.isoformat(timespec="microseconds").replace("+00:00", "Z")

    def to_json(self) -> dict[str, Any]:
        """Returns the entry as Cloud Logging's ``LogEntry``."""
        return {
            "insertId": self.insert_id,
            "timestamp": self.timestamp,
            "severity": self.stored.severity.name,
            "textPayload": self.stored.text,
            "resource": {
                "type": RESOURCE_TYPE,
                "labels": {"project_id": self.project, "job_id": self.job, "task_name": self.replica},
            },
            "labels": {"attempt": str(self.attempt), "stream": self.stored.stream},
        }
