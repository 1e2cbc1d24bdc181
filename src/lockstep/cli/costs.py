"""``lockstep costs``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, budget_text, connect

if TYPE_CHECKING:
    from rich.table import Table

_SHARES: Final = ("used", "provisioning", "idle", "failed")


def _of_share(share: str, field: str) -> Column:
    name = f"{share}{field[0].upper()}{field[1:]}"
    return Column(name=name, value=lambda row: row["nodes"].get(share, {}).get(field))


COLUMNS: Final = (
    *(
        Column(name=name)
        for name in (
            "name",
            "machineHours",
            "mlUnits",
            "costUsd",
            "owedUsd",
            "storedGibMonths",
            "storedUsd",
            "serverHours",
            "unusedServerHours",
            "unusedUsd",
            "unpriced",
            "sources",
        )
    ),
    *(_of_share(share, field) for share in _SHARES for field in ("seconds", "costUsd")),
)
"""The columns of the CSV. The text has a table for each subject."""


@answers("CostReportForm", is_list=True)
def costs(
    by: Annotated[
        str, typer.Option(metavar="job|day|project|node-type|model|version|label:KEY", help="What each row stands for.")
    ] = "job",
    since: Annotated[str, typer.Option(help="Start at this day or time (UTC), such as 2026-11-01.")] = "",
    until: Annotated[str, typer.Option(help="End before this day or time; by default now.")] = "",
    all_projects: Annotated[
        bool, typer.Option("--all-projects", help="All projects, and nodes that no job uses. For operators.")
    ] = False,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Show the costs of finished jobs, and of running jobs up to now."""
    with connect(project) as client:
        report = client.costs(by=by, since=since, until=until, all_projects=all_projects)
    return Answer(
        show=lambda: _show(by, report),
        document=report,
        rows=report["rows"],  # without the total, so that a sum over a column counts nothing twice
        columns=COLUMNS,
    )


def _show(by: str, report: Mapping[str, Any]) -> None:
    rows = (*report["rows"], report["total"])
    if report["rows"]:
        _print_rows(by, rows)
        if float(report["total"]["serverHours"]):
            _print_servers(by, rows)
        if float(report["total"]["storedGibMonths"]):
            _print_storage(by, rows, report["storageSource"])
    else:
        OUTPUT.print("no jobs ran")
    for budget in report["budgets"]:
        OUTPUT.print(f"budget of {budget_text(budget)}")


def _print_rows(by: str, rows: tuple[Mapping[str, Any], ...]) -> None:
    table = _table(by, "MACHINE HOURS", "ML UNITS", "LIST PRICE $", "OWED $")
    table.add_column("UNPRICED", no_wrap=True)
    for row in rows:
        amounts = (row["machineHours"], row["mlUnits"], row["costUsd"], row["owedUsd"])
        table.add_row(row["name"], *amounts, ", ".join(row["unpriced"]))
    OUTPUT.print(table)
    if any(float(amount["seconds"]) for amount in rows[-1]["nodes"].values()):
        _print_nodes(by, rows)


def _print_nodes(by: str, rows: tuple[Mapping[str, Any], ...]) -> None:
    table = _table(by, *(f"{share.upper()} $" for share in _SHARES))
    for row in rows:
        table.add_row(row["name"], *(row["nodes"][share]["costUsd"] for share in _SHARES))
    OUTPUT.print("\nnodes, from start to release")
    OUTPUT.print(table)
    sources = rows[-1]["sources"]
    if sources:
        OUTPUT.print(f"prices of nodes: {', '.join(sources)}")


def _print_servers(by: str, rows: tuple[Mapping[str, Any], ...]) -> None:
    table = _table(by, "HOURS", "UNUSED HOURS", "UNUSED $")
    for row in rows:
        if float(row["serverHours"]):
            table.add_row(row["name"], row["serverHours"], row["unusedServerHours"], row["unusedUsd"])
    OUTPUT.print("\nprediction servers, and how long they had no request")
    OUTPUT.print(table)


def _print_storage(by: str, rows: tuple[Mapping[str, Any], ...], source: str) -> None:
    table = _table(by, "GIB MONTHS", "STORAGE $")
    for row in rows:
        table.add_row(row["name"], row["storedGibMonths"], row["storedUsd"] or "unpriced")
    OUTPUT.print("\nkept in the bucket")
    OUTPUT.print(table)
    if source:
        OUTPUT.print(f"price of storage: {source}")


def _table(by: str, *titles: str) -> Table:
    from rich.table import Table  # here, because the help needs none

    table = Table(box=None, pad_edge=False)
    table.add_column(by.upper(), no_wrap=True)
    for title in titles:
        table.add_column(title, no_wrap=True, justify="right")
    return table
