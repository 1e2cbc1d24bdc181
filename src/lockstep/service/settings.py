"""What an operator can set of the service."""

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
from lockstep.service.security.users import NOBODY_ELSE, UserPool
from lockstep.service.store import parse_database_url
from lockstep.storage import check_shared_url


def sqlite_url(home: Home) -> str:
    """Returns the URL of a home's own database."""
    return f"sqlite:///{home.database}"


def home_name(home: Home) -> str:
    """Returns a home's name among those of all machines."""
    return f"{socket.gethostname()}:{home.path}"


def choose_database(home: Home, *, asked: str) -> str:
    """Returns the database for `Settings`: the one that is asked for, or else the one of last time.

    Args:
        home: remembers the one of last time.
        asked: a URL of PostgreSQL, "sqlite" for the home's own, or nothing.

    Raises:
        InvalidInputError: what is asked for is none of these, or has a password in it.
        StorageError: the home is another user's.
    """
    if asked == SQLITE:
        return ""
    if asked:
        return parse_database_url(asked, what="--database")
    try:
        return home.database_choice.read_text().strip()
    except (FileNotFoundError, NotADirectoryError):  # the latter is said when the home is made
        return ""
    except PermissionError as error:
        raise StorageError(
            f"the home {home.path} cannot be read: {error.strerror}",
            action=f"set {HOME_VARIABLE} to a folder that is yours",
        ) from None


SQLITE: Final = "sqlite"
"""Asks for the home's own database."""

QUOTAS: Final = TypeAdapter(dict[str, Quota])
"""Reads and writes quotas as JSON, from the process that starts a service to the service."""


BUDGETS: Final = TypeAdapter(dict[str, Budget])
"""The same for budgets."""


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
        database: URL of a PostgreSQL database, without a password; SQLite in the home if empty.
        engine: the cluster engine.
        max_running_jobs: how many jobs run at once on an engine whose machine types reserve nothing.
        run_as: which user ids jobs' programs run as: ``auto``, ``none``, or a pool as ``FIRST-LAST``.
        users: the pool, where the service found that it can be used.
        users_note: which users programs run as, in words.
        users_warning: what the operator is warned of about it, and what to do; empty where there is nothing.
        quotas: what each project may use at once; one without an entry has no limit.
        budgets: what each project may spend; one without an entry has no limit.
        prices: file of the operator's own prices; the published lists' alone, where it is None.
        webhooks: file of who is told what happens to jobs; nobody, where it is None.
        allow_webhooks_to: hosts and networks that jobs' own webhooks may lead to beside public addresses.
        poll_interval_s: pause between two passes of the controller.
        kept_by_systemd: whether systemd starts the service again when it dies.
        place_within_s: how long the engine may look for room for a gang that had some when it was ordered.

    Raises:
        InvalidInputError: the bucket is a relative path, or in the memory of one process; or the host is no address, or
            needs a certificate; the database's URL is none; what webhooks may lead to is no host and no network.
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
    run_as: str = NOBODY_ELSE
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
        check_binding(self.host, has_tls=self.has_tls, has_keys=True)  # keys: the service looks when it starts
        if self.database:
            parse_database_url(self.database, what="the database")
        _ = self.webhook_targets  # it is read when it is asked for

    @property
    def webhook_targets(self) -> WebhookTargets:
        """Where jobs' own webhooks may lead."""
        return parse_targets(self.allow_webhooks_to, is_local=is_loopback(self.host))

    @property
    def has_tls(self) -> bool:
        """Whether the REST interface has a certificate."""
        return self.tls_certificate is not None

    @property
    def database_url(self) -> str:
        """The database's URL for SQLAlchemy."""
        return parse_database_url(self.database, what="the database") if self.database else sqlite_url(self.home)
