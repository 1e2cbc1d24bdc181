"""Decides whether code of a version's packages may run in its prediction server, and as which user."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import final

from lockstep.service.security.users import UserPool
from lockstep.service.settings import Settings
from lockstep.service.store import VersionRecord
from lockstep.serving import ServerCode


@final
@dataclass(frozen=True, kw_only=True)
class CodeRules:
    """The rules for code of packages in a prediction server: it may do no more than a job's program on this machine.

    Attributes:
        users: the pool of user ids for servers that run such code; None if jobs' programs have no user ids of their
            own.
        why_refused: a message that says why such code may not run; None if it may run.
        bucket: the URL of the service's default bucket.
    """

    users: UserPool | None = None
    why_refused: str | None = None
    bucket: str = ""

    def server_code(self, version: VersionRecord, *, taken: Collection[int]) -> ServerCode:
        """Returns the code to start a version's server with.

        Args:
            version: the version.
            taken: the user ids of other versions' servers.
        """
        if not version.package_uris:
            return ServerCode()
        user, refusal = None, self.why_refused
        if refusal is None and self.users is not None:
            user = self.users.choose(f"{version.project}/{version.model}/{version.name}", taken=taken)
            if user is None:
                refusal = f"no user id of {self.users.first}-{self.users.last} is free for another prediction server"
        return ServerCode(
            packages=tuple(version.package_uris),
            program=version.python_module,
            refusal=refusal,
            user=user,
            bucket=self.bucket,
        )


def code_rules(settings: Settings) -> CodeRules:
    """Returns the rules of a service.

    Args:
        settings: the settings of the service, with the users that programs run as.
    """
    if settings.users is not None:
        users = settings.users.of_servers
        pool = f"{settings.users.first}-{settings.users.last}"
        few = f"the user ids of --run-as, {pool}, are fewer than ten, so that none is left for prediction servers"
        return CodeRules(users=users, why_refused=few if users is None else None, bucket=settings.bucket)
    if settings.engine.is_local:
        return CodeRules(bucket=settings.bucket)  # jobs' programs already run on this machine as this user
    return CodeRules(
        why_refused=f"it would run as the service's own user, {os.geteuid()}, on a machine where no job's program "
        "runs; make the model of Keras's own layers, or serve it with a service whose nodes are its own machine",
        bucket=settings.bucket,
    )
