"""``lockstep down``."""

from __future__ import annotations

from typing import Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import ERRORS, OUTPUT
from lockstep.home import Home


@answers("HomeForm", hints=True)
def down(
    cancel: Annotated[bool, typer.Option("--cancel", help="Cancel jobs that are not over, first.")] = False,
) -> Answer:
    """Stop the service, its engine and its prediction servers.

    Fails without changing anything if jobs are queued or running, unless --cancel is given.
    """
    # Imported here because the service's rooms take a while to import, and other commands do not need them.
    from lockstep.service.lifecycle import down as end
    from lockstep.service.settings import Settings, choose_database

    home = Home.from_env()
    with ERRORS.status("ending the service") as shown:
        end(
            Settings(home=home, bucket=str(home.bucket), database=choose_database(home, asked="")),
            cancel=cancel,
            progress=lambda text: shown.update(text),
        )
    return Answer(
        show=lambda: OUTPUT.print("lockstep is down; jobs, logs and models stay in the home and its bucket"),
        document={"home": str(home.path)},
        hint="to start it again: lockstep up",
    )
