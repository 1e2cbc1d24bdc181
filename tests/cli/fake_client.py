"""A client of a service that has jobs with series, logs and artifacts, all of them made up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lockstep.errors import UnavailableError


def job(name: str, *, state: str = "RUNNING", replicas: tuple[str, ...] = ("master-replica-0",)) -> dict[str, Any]:
    """Returns a job with what commands read of it."""
    return {
        "jobId": name,
        "state": state,
        "lockstep": {
            "progress": {"text": "step 7, loss 0.5", "time": 0.0},
            "waitingFor": None,
            "endReason": None,
            "bill": None,
            "accrued": {"text": "$0.10", "note": "so far"},
            "simulated": False,
            "replicas": [{"name": each, "phase": "running", "end": None} for each in replicas],
            "outputs": {"tensorboard": f"gs://b/{name}/tensorboard"},
        },
    }


class FakeClient:
    """Answers as `Client` does.

    Attributes:
        found: the jobs by name.
        series: the pages of series that every job has.
        lines: the lines of every log.
        files: the content of the artifacts by path.
        fetched: the paths that were fetched.
        num_failures: how often `job` fails before it answers.
    """

    is_on_this_machine = False

    def __init__(self, *jobs: dict[str, Any]) -> None:
        self.found = {each["jobId"]: each for each in jobs}
        self.series: list[dict[str, Any]] = []
        self.lines: list[str] = []
        self.files: dict[str, bytes] = {}
        self.fetched: list[str] = []
        self.num_failures = 0
        self.queries: list[Mapping[str, Any]] = []

    def __enter__(self) -> FakeClient:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def find_again(self) -> None:
        pass

    def job(self, name: str) -> dict[str, Any]:
        if self.num_failures:
            self.num_failures -= 1
            raise UnavailableError("the service is away")
        return self.found[name]

    def jobs(self, *, filter_text: str, limit: int) -> list[dict[str, Any]]:
        return list(self.found.values())[:limit]

    def trials(self, name: str) -> list[dict[str, Any]]:
        return [{"jobId": other} for other in self.found if other.startswith(f"{name}.")]

    def metric_pages(self, job_id: str, *, query: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        self.queries.append(query)
        yield from self.series

    def log_page(self, job_id: str, *, cursor: str = "", filter_text: str = "") -> dict[str, Any]:
        start = int(cursor or 0)
        entries = [{"textPayload": line} for line in self.lines[start : start + 2]]
        end = start + len(entries)
        return {"entries": entries, "cursor": str(end), "more": end < len(self.lines)}

    def artifacts(self, job_id: str) -> list[dict[str, Any]]:
        return [
            {"path": path, "output": path.partition("/")[0], "sizeBytes": len(data), "updateTime": None}
            for path, data in self.files.items()
        ]

    def fetch_artifact(self, job_id: str, path: str, *, to: Path) -> None:
        self.fetched.append(path)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_bytes(self.files[path])
