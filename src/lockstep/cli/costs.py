"""``lockstep costs``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect


def costs(
    by: Annotated[str, typer.Option(metavar="job|day|label:KEY", help="What each row is.")] = "job",
    since: Annotated[str, typer.Option(help="From this day or time on (UTC), such as 2026-11-01.")] = "",
    until: Annotated[str, typer.Option(help="Before this day or time; now if left out.")] = "",
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Show what jobs cost: those that are over, and those that run, up to now."""
    with connect(project) as client:
        report = client.costs(by=by, since=since, until=until)
    table = Table(box=None, pad_edge=False)
    table.add_column(by.upper(), no_wrap=True)
    for title in ("MACHINE HOURS", "ML UNITS", "LIST PRICE $", "OWED $"):
        table.add_column(title, no_wrap=True, justify="right")
    table.add_column("UNPRICED", no_wrap=True)
    for row in (*report["rows"], report["total"]):
        amounts = (row["machineHours"], row["mlUnits"], row["costUsd"], row["owedUsd"])
        table.add_row(row["name"], *amounts, ", ".join(row["unpriced"]))
    OUTPUT.print(table if report["rows"] else "nothing ran")
