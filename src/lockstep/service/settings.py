"""The settings of the service."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import TypeAdapter

from lockstep.clusters import EngineChoice
from lockstep.errors import InvalidInputError, StorageError
from lockstep.home import HOME_VARIABLE, Home
from lockstep.jobs.billing.budgets import Budget
from lockstep.jobs.notifications.webhook_targets import WebhookTargets, parse_targets
from lockstep.jobs.scheduling import Quota
from lockstep.service.listening import LOOPBACK, check_binding, is_loopback
from lockstep.service.security.users import NO_POOL, UserPool
from lockstep.service.store import parse_database_url
from lockstep.storage import check_shared_url


def sqlite_url(home: Home) -> str:
    """Returns the URL of a home's own database."""
    return f"sqlite:///{home.database}"


def home_name(home: Home) -> str:
    """Returns a name of the home that is unique across machines: host name and path."""
    return f"{socket.gethostname()}:{home.path}"


def choose_database(home: Home, *, asked: str) -> str:
    """Returns the database for `Settings`: the requested one, or else the one that was used last.

    Args:
        home: the home, which records the database that was used last.
        asked: a PostgreSQL URL, "sqlite" for the home's own database, or "" for the one that was used last.

    Raises:
        InvalidInputError: If `asked` is none of these, or if it contains a password.
        StorageError: If the home cannot be read by this user.
    """
    if asked == SQLITE:
        return ""
    if asked:
        return parse_database_url(asked, what="--database")
    try:
        return home.database_choice.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):  # the latter is reported when the home is created
        return ""
    except PermissionError as error:
        raise StorageError(
            f"the home {home.path} cannot be read: {error.strerror}",
            action=f"set {HOME_VARIABLE} to a folder that is yours",
        ) from None


SQLITE: Final = "sqlite"
"""The value of ``--database`` for the home's own database."""

QUOTAS: Final = TypeAdapter(dict[str, Quota])
"""Parses and serializes quotas as JSON, which the starting process passes to the service."""


BUDGETS: Final = TypeAdapter(dict[str, Budget])
"""Parses and serializes budgets in the same way."""


def _default_max_running_jobs() -> int:
    return max(2, os.cpu_count() or 1)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The service's settings.

    Attributes:
        home: the home of the service.
        host: the IP address at which the REST interface listens.
        port: the port of the REST interface; 0 for the port that was used last if it is free, else any free port.
        tls_certificate: the file with the REST interface's certificate and its intermediate certificates, in PEM;
            required if the interface listens on more than loopback.
        tls_key: the file with the private key of the certificate.
        bucket: the URL of the default bucket, for logs, code and outputs of jobs that specify no other.
        database: the URL of a PostgreSQL database, without a password; SQLite in the home if empty.
        engine: the cluster engine.
        max_running_jobs: the number of jobs that may run at once on an engine whose machine types reserve nothing.
        run_as: the user ids that jobs' programs run as: ``auto``, ``none``, or a pool as ``FIRST-LAST``.
        users: the pool of user ids; None if programs run as the service's own user.
        users_note: a description of the users that programs run as.
        users_warning: a warning to the operator about these users, with what to do; empty if there is none.
        quotas: the quotas by project; a project without an entry has no limit.
        budgets: the budgets by project; a project without an entry has no limit.
        prices: the file with the operator's own prices; None to use only the published lists.
        webhooks: the file with the operator's webhooks; None if the operator has none.
        allow_webhooks_to: the hosts and networks that jobs' webhooks may target in addition to public addresses.
        poll_interval_s: the pause between two passes of the controller.
        kept_by_systemd: whether systemd restarts the service when it dies.
        place_within_s: how long the engine may take to find room for a gang that had room when it was ordered.

    Raises:
        InvalidInputError: If the bucket is a relative path or in the memory of one process; if the host is not an IP
            address or needs a certificate; if only one of certificate and key is set; if the database's URL is not
            valid; or if an entry of `allow_webhooks_to` is neither a host nor a network.
    """

    home: Home
    host: str = LOOPBACK
    port: int = 0
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    bucket: str
    database: str = ""
    engine: EngineChoice = field(default_factory=EngineChoice)
    max_running_jobs: int = field(default_factory=_default_max_running_jobs)
    run_as: str = NO_POOL
    users: UserPool | None = None
    users_note: str = "as the service's own user"
    users_warning: str = ""
    quotas: Mapping[str, Quota] = field(default_factory=dict[str, Quota])
    budgets: Mapping[str, Budget] = field(default_factory=dict[str, Budget])
    prices: Path | None = None
    webhooks: Path | None = None
    allow_webhooks_to: tuple[str, ...] = ()
    poll_interval_s: float = 0.3
    kept_by_systemd: bool = False
    place_within_s: float = 60.0

    def __post_init__(self) -> None:
        check_shared_url(self.bucket, what="the default bucket")
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise InvalidInputError("--tls-certificate and --tls-key belong together", action="name both, or neither")
        check_binding(self.host, has_tls=self.has_tls, has_keys=True)  # the service checks for keys when it starts
        if self.database:
            parse_database_url(self.database, what="the database")
        _ = self.webhook_targets  # the property validates the targets

    @property
    def webhook_targets(self) -> WebhookTargets:
        """The targets that jobs' webhooks may have."""
        return parse_targets(self.allow_webhooks_to, is_local=is_loopback(self.host))

    @property
    def has_tls(self) -> bool:
        """Whether the REST interface has a certificate."""
        return self.tls_certificate is not None

    @property
    def database_url(self) -> str:
        """The URL of the database, for SQLAlchemy."""
        return parse_database_url(self.database, what="the database") if self.database else sqlite_url(self.home)
