"""``lockstep down``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.console import OUTPUT
from lockstep.home import Home


def down(
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel jobs that are not over, first.")] = False,
) -> None:
    """Stop the service, its engine and its prediction servers.

    Fails without changing anything if jobs are queued or running, unless --cancel is given.
    """
    # Imported here because the service's rooms take a while to import, and other commands do not need them.
    from lockstep.service.lifecycle import down as end
    from lockstep.service.settings import Settings, choose_database

    home = Home.from_env()
    with OUTPUT.status("ending the service") as shown:
        end(
            Settings(home=home, bucket=str(home.bucket), database=choose_database(home, asked="")),
            cancel=cancel,
            progress=lambda text: shown.update(text),
        )
    OUTPUT.print("lockstep is down; jobs, logs and models stay in the home and its bucket")
