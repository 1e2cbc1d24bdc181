"""``lockstep open``."""

from __future__ import annotations

import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect


def open_console(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB", help="The job to show. Default: the list of jobs.")
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, if this machine has one.")
    ] = True,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Open the console in a browser, signed in with your key.

    The link is valid for five minutes, and for one use.
    """
    with connect(project) as client:
        path = f"/jobs?project={quote(project)}"
        if job is not None:
            client.job(job)
            path = f"/projects/{quote(project)}/jobs/{quote(job)}"
        url = client.console_url(then=path)
    if not (browser and webbrowser.open(url)):
        OUTPUT.print(f"open this link within five minutes, once: {url}", soft_wrap=True)
