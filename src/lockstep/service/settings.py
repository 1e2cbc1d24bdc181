"""What an operator can set of the service."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from lockstep.errors import InvalidInputError
from lockstep.home import Home
from lockstep.jobs.scheduling import Quota
from lockstep.service.listening import LOOPBACK, check_binding
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
        host: IP address at which the REST interface listens.
        port: its port; 0 takes the one of last time if it is free, else any free one.
        tls_certificate: file of the REST interface's certificate and what is between it and its authority, in PEM; it
            needs one where it listens on more than loopback.
        tls_key: file of the certificate's private key.
        bucket: URL of the default bucket, for logs, code and outputs of jobs that name no other.
        cluster: name of the cluster engine.
        max_running_jobs: how many jobs run at once on an engine whose machine types reserve nothing.
        quotas: what each project may use at once; one without an entry has no limit.
        poll_interval_s: pause between two passes of the controller.

    Raises:
        InvalidInputError: the bucket is a relative path, or in the memory of one process; or the host is no address, or
            needs a certificate.
    """

    home: Home
    host: str = LOOPBACK
    port: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    bucket: str
    cluster: str = "embedded"
    max_running_jobs: int = field(default_factory=_default_max_running_jobs)
    quotas: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    poll_interval_s: float = 0.3

    def __post_init__(self) -> None:
        check_shared_url(self.bucket, what="the default bucket")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidInputError("--tls-certificate and --tls-key belong together", action="name both, or neither")
        check_binding(self.host, has_tls=self.has_tls, has_keys=True)  # keys: the service looks when it starts

    @property
    def has_tls(self) -> bool:
        """Whether the REST interface has a certificate."""
        return self.tls_certificate is not None
