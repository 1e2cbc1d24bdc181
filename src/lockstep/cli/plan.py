"""``lockstep plan``: what a script's training step would need on hardware that you do not have."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import OUTPUT
from lockstep.errors import ExitCode, InvalidInputError

if TYPE_CHECKING:
    from lockstep.planning import Target
    from lockstep.planning.forecast import ForecastOptions


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
    chips: Annotated[
        str | None,
        typer.Option(
            metavar="N,N", help="Simulate training on these numbers of chips too, with a plan's rows on each."
        ),
    ] = None,
    step_s: Annotated[
        float | None,
        typer.Option(min=1e-6, help="The time of a step on one chip that you measured, in seconds, for --chips."),
    ] = None,
    mtbf_hours: Annotated[
        float | None, typer.Option(min=1, help="Mean time between failures of a chip, in hours, for --chips.")
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
    scaling = _scaling(chips, step_s=step_s, mtbf_hours=mtbf_hours, target=target)
    price = None if usd_per_chip_hour is None else _price(usd_per_chip_hour)
    catalogue = load_catalogue()
    catalogue.price_region(region, what="--region")
    measurement = plan_script(script, arguments=arguments or [], target=target, timeout_s=timeout_s)
    report = make_report(
        measurement, target=target, catalogue=catalogue, region=region, usd_per_chip_hour=price, scaling=scaling
    )
    return Answer(
        show=lambda: [OUTPUT.print(line) for line in report.lines()],
        document=report.to_json(),
        # An error, so that `lockstep plan train.py && lockstep submit ...` stops.
        error=None if report.fits else typer.Exit(ExitCode.NO),
    )


def _scaling(
    chips: str | None, *, step_s: float | None, mtbf_hours: float | None, target: Target
) -> ForecastOptions | None:
    from lockstep.planning.forecast import CHIP_MTBF_HOURS, ForecastOptions, network_of, parse_chips

    if chips is None:
        if step_s is not None or mtbf_hours is not None:
            option = "--mtbf-hours" if step_s is None else "--step-s"
            raise InvalidInputError(f"{option} is for --chips", action="add --chips 64,512, or leave it out")
        return None
    if target.chip is None:
        raise InvalidInputError(
            "--chips", received=f"--on {target.name}", allowed="a kind of TPU: CPUs have no published figures"
        )
    numbers = parse_chips(chips)
    network_of(target.chip, num_chips=numbers[-1])  # refused before the step is compiled
    return ForecastOptions(num_chips=numbers, step_s=step_s, mtbf_hours=mtbf_hours or CHIP_MTBF_HOURS)


def _price(text: str) -> Decimal:
    try:
        price = Decimal(text)
    except InvalidOperation:
        price = Decimal(-1)
    if not price.is_finite() or price < 0:
        raise InvalidInputError("--usd-per-chip-hour", received=text, allowed="US dollars, such as 1.20")
    return price
