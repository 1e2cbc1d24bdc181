"""What an operator can set of the service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from pydantic import TypeAdapter

from lockstep.home import Home
from lockstep.jobs.scheduling import Quota
from lockstep.storage import check_shared_url

QUOTAS: Final = TypeAdapter(dict[str, Quota])
"""Reads and writes quotas as JSON, from the process that starts a service to the service."""


def _default_max_running_jobs() -> int:
    return max(2, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The service's settings.

    Attributes:
        home: where its state lies.
        port: loopback port of the REST interface; 0 takes the one of last time if it is free, else any free one.
        bucket: URL of the default bucket, for logs, code and outputs of jobs that name no other.
        cluster: name of the cluster engine.
        max_running_jobs: how many jobs run at once on an engine whose machine types reserve nothing.
        quotas: what each project may use at once; one without an entry has no limit.
        poll_interval_s: pause between two passes of the controller.

    Raises:
        InvalidInputError: the bucket is a relative path, or in the memory of one process.
    """

    home: Home
    port: int = 0
    bucket: str
    cluster: str = "embedded"
    max_running_jobs: int = field(default_factory=_default_max_running_jobs)
    quotas: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    poll_interval_s: float = 0.3

    def __post_init__(self) -> None:
        check_shared_url(self.bucket, what="the default bucket")
