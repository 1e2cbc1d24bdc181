"""``lockstep open``."""

from __future__ import annotations

import webbrowser
from typing import Annotated
from urllib.parse import quote

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.completing import complete_job
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect


@answers("ConsoleUrlForm")
def open_console(
    job: Annotated[
        str | None,
        typer.Argument(metavar="JOB", help="The job to show. Default: the list of jobs.", autocompletion=complete_job),
    ] = None,
    browser: Annotated[
        bool, typer.Option("--browser/--no-browser", help="Open a browser, if this machine has one.")
    ] = True,
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Open the console in a browser, signed in with your key.

    The link is valid for five minutes, and for one use. With --json, it is printed, and no browser is opened.
    """
    with connect(project) as client:
        path = f"/jobs?project={quote(project)}"
        if job is not None:
            client.job(job)
            path = f"/projects/{quote(project)}/jobs/{quote(job)}"
        url = client.console_url(then=path)
    is_open = browser and output_format is Format.TABLE and webbrowser.open(url)
    text = "" if is_open else f"open this link within five minutes, once: {url}"
    return Answer(show=lambda: text and OUTPUT.print(text, soft_wrap=True), document={"url": url})
