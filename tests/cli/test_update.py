"""Labels are changed under the job's etag, and what others change meanwhile stays."""

from __future__ import annotations

from typing import Any, cast

import pytest

from lockstep.cli.jobs import read_sort_key
from lockstep.cli.update import NUM_ATTEMPTS, change_labels
from lockstep.client import Client
from lockstep.errors import ConflictError, InvalidInputError


class Service:
    """Stands for the client of a service in which somebody else changes the job, too."""

    def __init__(self, *, num_changes: int) -> None:
        self.labels = {"team": "vision", "stage": "dev"}
        self.version = 0
        self.num_changes = num_changes
        self.num_written = 0

    def job(self, job_id: str) -> dict[str, Any]:
        found = {"jobId": job_id, "labels": dict(self.labels), "etag": f"v{self.version}"}
        if self.num_changes:
            self.num_changes -= 1
            self.version += 1
            self.labels[f"other{self.version}"] = "x"
        return found

    def update_labels(self, job_id: str, *, labels: dict[str, str], etag: str) -> dict[str, Any]:
        if etag != f"v{self.version}":
            raise ConflictError(f"job {job_id} changed since it was read")
        self.labels = labels
        self.num_written += 1
        return {"labels": labels}


def change(service: Service, **changes: Any) -> dict[str, str]:
    asked = {"added": {}, "removed": [], "clear": False, **changes}
    return change_labels(cast("Client", service), "j", **asked).get("labels", {})


def test_labels_are_set_taken_away_and_cleared() -> None:
    service = Service(num_changes=0)
    assert change(service, added={"stage": "prod"}) == {"team": "vision", "stage": "prod"}
    assert change(service, removed=["stage", "absent"]) == {"team": "vision"}
    assert change(service, added={"a": "b"}, clear=True) == {"a": "b"}


def test_what_somebody_else_changed_meanwhile_stays() -> None:
    service = Service(num_changes=2)
    labels = change(service, added={"stage": "prod"})
    assert labels == {"team": "vision", "stage": "prod", "other1": "x", "other2": "x"}
    assert service.num_written == 1


def test_a_job_that_always_changes_is_given_up() -> None:
    service = Service(num_changes=NUM_ATTEMPTS)
    with pytest.raises(ConflictError):
        change(service, added={"a": "b"})
    assert service.num_written == 0


def test_jobs_are_sorted_by_what_they_have() -> None:
    jobs: list[dict[str, Any]] = [
        {"jobId": "b", "trainingOutput": {"consumedMLUnits": 2.0}, "endTime": "2026-01-02"},
        {"jobId": "a", "trainingOutput": {}},
    ]
    for name, first in (("jobId", "a"), ("mlUnits", "a"), ("endTime", "a"), ("~jobId", "b")):
        ordered = sorted(jobs, key=read_sort_key(name), reverse=name.startswith("~"))
        assert ordered[0]["jobId"] == first
    with pytest.raises(InvalidInputError, match="did you mean 'createTime'"):
        read_sort_key("~createTim")
