"""Completes the names of jobs, models, versions, secrets and keys in a shell, by asking the service.

A shell waits for the answer while its user types, so the service has `WAIT_S` for it. If it does not answer in time, or
refuses, there are no completions, and nothing is printed.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import typer

from lockstep.cli.lean_client import client_class

if TYPE_CHECKING:
    from lockstep.client import Client

WAIT_S: Final = 0.9
NUM_NAMES: Final = 100
"""The maximum number of names that are asked for."""

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)?")
"""Names that a shell takes as one word: it may evaluate whatever else is in a completion."""


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of jobs that begin with the text, the newest first."""

    def ask(client: Client) -> Iterable[str]:
        narrowed = f"jobId:{incomplete}*" if incomplete.isidentifier() else ""
        return [job["jobId"] for job in client.jobs(filter_text=narrowed, limit=NUM_NAMES)]

    return _ask(ctx, ask, incomplete=incomplete)


def complete_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of models that begin with the text."""
    return _ask(ctx, _models, incomplete=incomplete)


def complete_version(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of models that begin with the text; of the only one, also ``MODEL/VERSION``."""

    def ask(client: Client) -> Iterable[str]:
        model, slash, _ = incomplete.partition("/")
        if slash:
            return _versions(client, model)
        models = [name for name in _models(client) if name.startswith(incomplete)]
        return [*models, *_versions(client, models[0])] if len(models) == 1 else models

    return _ask(ctx, ask, incomplete=incomplete)


def complete_version_of_model(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of versions that begin with the text, of the model that the command line names."""
    # While the value of the last option is missing, arguments are not assigned to their parameters yet.
    model = ctx.params.get("model") or next(iter(ctx.args), None)
    if not isinstance(model, str):
        return []
    return _ask(
        ctx,
        lambda client: [name.partition("/")[2] for name in _versions(client, model)],
        incomplete=incomplete,
    )


def complete_secret(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the names of the project's secrets that begin with the text."""
    return _ask(ctx, lambda client: [secret["name"] for secret in client.secrets()], incomplete=incomplete)


def complete_key(ctx: typer.Context, incomplete: str) -> list[str]:
    """Returns the ids of keys that begin with the text and are not revoked."""
    return _ask(
        ctx,
        lambda client: [key["key"] for key in client.keys() if key["revokeTime"] is None],  # noqa: SIM118 - a request
        incomplete=incomplete,
    )


def _models(client: Client) -> list[str]:
    return [model["name"].rpartition("/")[2] for model in client.models(limit=NUM_NAMES)]


def _versions(client: Client, model: str) -> list[str]:
    return [f"{model}/{version['name'].rpartition('/')[2]}" for version in client.versions(model, limit=NUM_NAMES)]


def _ask(ctx: typer.Context, ask: Callable[[Client], Iterable[str]], *, incomplete: str) -> list[str]:
    """Returns the names that a question to the service finds, within `WAIT_S`; none if there is no answer by then."""
    found: list[str] = []
    project = ctx.params.get("project") or os.environ.get("LOCKSTEP_PROJECT") or "local"

    def run() -> None:
        # A shell shows whatever is printed in the middle of what its user types, so no error is.
        with contextlib.suppress(Exception), client_class().from_env(project=str(project)) as client:
            found.extend(ask(client))

    asking = threading.Thread(target=run, name="completion", daemon=True)
    asking.start()
    asking.join(WAIT_S)  # a daemon thread, so the process ends without it
    return [name for name in [*found] if name.startswith(incomplete) and _NAME.fullmatch(name)]
