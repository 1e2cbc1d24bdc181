"""``lockstep plan``: what a script's training step would need on hardware that you do not have."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import OUTPUT
from lockstep.errors import ExitCode, InvalidInputError


@answers("PlanForm")
def plan(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="The training script.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="-- ARGS", help="Arguments of the script, after --.")
    ] = None,
    on: Annotated[
        str, typer.Option("--on", help="Chips to plan for: v4:2x2x2, v5e:2x4, v5p:2x2x1, v6e:4x4, ... or cpu:4.")
    ] = "v5e:2x4",
    region: Annotated[str | None, typer.Option(help="Region, for its prices.")] = None,
    usd_per_chip_hour: Annotated[
        str | None, typer.Option(metavar="USD", help="Your price of a chip for an hour, instead of the list price.")
    ] = None,
    timeout_s: Annotated[float | None, typer.Option(help="Give up after this many seconds.", min=1)] = None,
) -> Answer:
    """Compile a script's training step for TPUs that you do not have: memory, traffic, operations, time, cost.

    The script runs on this machine up to its first training step. This step is compiled for the chips but not run, and
    the script ends there. The exit code is 1 if the step does not fit into the memory of a chip.
    """
    # Imported here so that other commands start without these rooms.
    from lockstep.jobs.machines.catalogue import load_catalogue
    from lockstep.planning import Target, make_report, plan_script

    target = Target.parse(on)
    price = None if usd_per_chip_hour is None else _price(usd_per_chip_hour)
    catalogue = load_catalogue()
    catalogue.price_region(region, what="--region")
    measurement = plan_script(script, arguments=arguments or [], target=target, timeout_s=timeout_s)
    report = make_report(measurement, target=target, catalogue=catalogue, region=region, usd_per_chip_hour=price)
    return Answer(
        show=lambda: [OUTPUT.print(line) for line in report.lines()],
        document=report.to_json(),
        # An error, so that `lockstep plan train.py && lockstep submit ...` stops.
        error=None if report.fits else typer.Exit(ExitCode.NO),
    )


def _price(text: str) -> Decimal:
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or price < 0:
        raise InvalidInputError("--usd-per-chip-hour", received=text, allowed="US dollars, such as 1.20")
    return price
