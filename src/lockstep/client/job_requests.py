"""The requests to the service that are about jobs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, Final

from lockstep.client.paths import path_segment

MAX_SCALAR_REQUESTS: Final = 200
"""The service reads large TensorBoard files in parts of half a second, one for each request."""


class AbstractJobRequests(ABC):
    """Sends the requests that are about jobs. `Client` has them, and sends them over its connections."""

    _prefix: str

    def create_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Submits a job in the contract's JSON form, and returns the created job."""
        return self._call("POST", f"{self._prefix}/jobs", body=job)

    def preview_job(self, job: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the preview of a job, without submitting it."""
        return self._call("POST", f"{self._prefix}/jobs", query={"validateOnly": "true"}, body=job)

    def update_labels(self, job_id: str, *, labels: Mapping[str, str], etag: str) -> dict[str, Any]:
        """Replaces a job's labels, if the job has not changed since it was read with this etag, and returns the job."""
        body = {"labels": dict(labels), "etag": etag}
        return self._call("PATCH", self._job(job_id), query={"updateMask": "labels"}, body=body)

    def job(self, job_id: str) -> dict[str, Any]:
        """Returns a job."""
        return self._call("GET", self._job(job_id))

    def jobs(self, *, filter_text: str = "", order_by: str = "", limit: int = 100) -> list[dict[str, Any]]:
        """Returns jobs; sends as many requests as needed.

        Args:
            filter_text: the filter that selects jobs; empty for all.
            order_by: a field, with ``desc`` behind it for the largest first; empty for the newest first.
            limit: the maximum number of jobs.
        """
        query = {"filter": filter_text, "orderBy": order_by}
        return self._listed(f"{self._prefix}/jobs", field="jobs", query=query, limit=limit)

    def job_page(self, *, filter_text: str = "", size: int = 0, token: str = "") -> dict[str, Any]:
        """Returns a page of jobs, the newest first.

        Args:
            filter_text: the filter that selects jobs; empty for all.
            size: the maximum number of jobs; 0 for the service's default.
            token: the token from the previous page; empty for the first page.

        Returns:
            ``{"jobs", "nextPageToken"}``; the last page has no token.
        """
        query = {"filter": filter_text, "pageSize": size, "pageToken": token}
        return self._call("GET", f"{self._prefix}/jobs", query=query)

    def cancel_job(self, job_id: str) -> None:
        """Requests the cancellation of a job."""
        self._call("POST", f"{self._job(job_id)}:cancel")

    def job_events(self, job_id: str) -> list[dict[str, Any]]:
        """Returns a job's events, the oldest first."""
        return self._call("GET", f"{self._job(job_id)}/events")["events"]

    def job_deliveries(self, job_id: str, *, number: int) -> list[dict[str, Any]]:
        """Returns the last deliveries of a job's webhook, the latest first.

        Args:
            job_id: the job.
            number: the webhook's place in the training input, from 0.
        """
        return self._call("GET", f"{self._job(job_id)}/webhooks/{number}/deliveries")["deliveries"]

    def job_models(self, job_id: str) -> list[dict[str, Any]]:
        """Returns the ``.keras`` files that a job saved, each with ``url`` and ``sizeBytes``."""
        return self._call("GET", f"{self._job(job_id)}/models")["models"]

    def trials(self, job_id: str) -> list[dict[str, Any]]:
        """Returns all trials of a search; sends as many requests as needed.

        Each is the contract's ``HyperparameterOutput`` with ``jobId``, the name of the trial's job, and ``costUsd``.
        """
        return list(self._pages(f"{self._job(job_id)}/trials", field="trials"))

    def artifacts(self, job_id: str) -> list[dict[str, Any]]:
        """Returns all files that a job left in the folders of its outputs; sends as many requests as needed.

        Each has ``path``, which begins with the name of the output, ``output``, ``sizeBytes`` (an integer) and
        ``updateTime`` (RFC 3339; None if it is not known).
        """
        return list(self._pages(f"{self._job(job_id)}/artifacts", field="artifacts"))

    def scalars(self, job_id: str, *, tag: str = "", max_points: int = 500) -> dict[str, Any]:
        """Returns the curves of a job, read from its TensorBoard files; sends as many requests as needed.

        Args:
            job_id: the job's id.
            tag: the tag of the curves, such as ``epoch_loss``; empty for all.
            max_points: the maximum number of points of a curve. Longer ones are thinned evenly.

        Returns:
            ``{"runs": [{"run", "tags": [{"tag", "points": [[step, time_s, value], ...]}]}], "notes": [...]}``. A value
            that is not finite is None. The notes say what could not be read.
        """
        query = {"maxPoints": max_points, **({"tag": tag} if tag else {})}
        num_left = MAX_SCALAR_REQUESTS
        while True:
            found = self._call("GET", f"{self._job(job_id)}/scalars", query=query)
            num_left -= 1
            if not found.pop("more") or num_left == 0:
                return found

    def log_page(self, job_id: str, *, cursor: str = "", filter_text: str = "") -> dict[str, Any]:
        """Returns the next entries of a job's log that match a filter.

        Args:
            job_id: the job's id.
            cursor: the cursor from the previous page; empty for the first page.
            filter_text: a filter in Cloud Logging's query language; see docs/logs.md.

        Returns:
            ``{"entries", "cursor", "more", "complete", "numMissing"}``. An empty page may be followed by more, because
            the service searches for a limited time per request.
        """
        query = {"cursor": cursor, "filter": filter_text}
        return self._call("GET", f"{self._job(job_id)}/logEntries", query=query)

    def log_entries(self, job_id: str, *, filter_text: str = "") -> Iterator[dict[str, Any]]:
        """Yields the current entries of a job's log, as Cloud Logging's ``LogEntry``; sends as many requests as needed.

        Args:
            job_id: the job's id.
            filter_text: a filter in Cloud Logging's query language; see docs/logs.md.
        """
        cursor, more = "", True
        while more:
            page = self.log_page(job_id, cursor=cursor, filter_text=filter_text)
            yield from page["entries"]
            cursor, more = page["cursor"], page["more"]

    @abstractmethod
    def _call(self, method: str, path: str, **options: Any) -> dict[str, Any]:
        """Sends a request, and returns the JSON of its response."""

    @abstractmethod
    def _listed(self, path: str, *, field: str, query: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
        """Returns the first resources of a list; sends as many requests as needed."""

    @abstractmethod
    def _pages(self, path: str, *, field: str) -> Iterator[dict[str, Any]]:
        """Yields the resources on all pages of a list."""

    def _job(self, job_id: str) -> str:
        return f"{self._prefix}/jobs/{path_segment(job_id, what='job')}"
