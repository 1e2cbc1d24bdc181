"""``lockstep up``."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.console import ERRORS, OUTPUT, absolute_url, print_document, warn_if_programs_run_as_root
from lockstep.home import Home

if TYPE_CHECKING:
    from lockstep.client import RunningService
    from lockstep.service.settings import Settings


@answers("StartedForm", hints=True)
def up(
    host: Annotated[
        str,
        typer.Option(
            help="IP address that the REST interface listens on. Addresses other than loopback need TLS and API keys."
        ),
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the REST interface; 0 selects a free port.")] = 0,
    tls_certificate: Annotated[
        Path | None, typer.Option(help="PEM file with the REST interface's certificate and its chain.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(help="File with the certificate's private key, without a passphrase.")
    ] = None,
    bucket: Annotated[str, typer.Option(help="Default bucket for jobs. Default: a folder in the home.")] = "",
    database: Annotated[
        str,
        typer.Option(
            help="URL of a PostgreSQL database, without its password, or `sqlite` for the home's own database. "
            "Default: the database of the last start, initially the home's own. See docs/operations.md."
        ),
    ] = "",
    max_running_jobs: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of jobs that run at once. Default: the number of cores, but at least 2."
        ),
    ] = None,
    run_as: Annotated[
        str,
        typer.Option(
            metavar="FIRST-LAST|auto|none",
            help="Range of user ids to run the programs of jobs as; `auto` chooses one if the service can switch "
            "users. See docs/security.md.",
        ),
    ] = "auto",
    quotas: Annotated[
        Path | None, typer.Option(help="YAML file with the quotas of projects; see docs/queue.md.")
    ] = None,
    budgets: Annotated[
        Path | None, typer.Option(help="YAML file with the budgets of projects; see docs/costs.md.")
    ] = None,
    prices: Annotated[
        Path | None,
        typer.Option(
            help="YAML file with your own machine prices. Default: the published list prices. See docs/costs.md."
        ),
    ] = None,
    webhooks: Annotated[
        Path | None,
        typer.Option(help="YAML file with webhooks to notify of job states and budgets; see docs/webhooks.md."),
    ] = None,
    allow_webhooks_to: Annotated[
        list[str] | None,
        typer.Option(
            metavar="HOST|NETWORK",
            help="Host or network that jobs' webhooks may target in addition to public addresses; may be repeated.",
        ),
    ] = None,
    print_unit: Annotated[
        bool,
        typer.Option("--print-unit", help="Print a systemd unit with these settings, without starting the service."),
    ] = False,
) -> Answer | None:
    """Start the service on this machine, with its engine, database and REST interface."""
    # Imported here because the service's rooms take a while to import, and other commands do not need them.
    from lockstep.jobs.billing.budgets import parse_budgets
    from lockstep.jobs.billing.prices import apply_prices
    from lockstep.jobs.machines.catalogue import load_catalogue
    from lockstep.jobs.parsing.yaml_documents import read_yaml
    from lockstep.jobs.scheduling import parse_quotas
    from lockstep.service.lifecycle import up as start
    from lockstep.service.notifications.webhooks import read_webhooks
    from lockstep.service.settings import Settings, choose_database

    home = Home.from_env()
    where = absolute_url(bucket, what="--bucket") if bucket else str(home.bucket)
    settings = Settings(
        home=home,
        host=host,
        port=port,
        tls_certificate=None if tls_certificate is None else tls_certificate.absolute(),
        tls_key=None if tls_key is None else tls_key.absolute(),
        bucket=where,
        database=choose_database(home, asked=database),
        run_as=run_as,
        allow_webhooks_to=tuple(allow_webhooks_to or ()),
    )
    if quotas is not None:
        settings = replace(settings, quotas=parse_quotas(read_yaml(quotas, flag="--quotas"), source=str(quotas)))
    if budgets is not None:
        settings = replace(settings, budgets=parse_budgets(read_yaml(budgets, flag="--budgets"), source=str(budgets)))
    if prices is not None:
        apply_prices(load_catalogue(), document=read_yaml(prices, flag="--prices"), source=str(prices))
        settings = replace(settings, prices=prices.absolute())
    if webhooks is not None:
        read_webhooks(webhooks)
        settings = replace(settings, webhooks=webhooks.absolute())
    if max_running_jobs is not None:
        settings = replace(settings, max_running_jobs=max_running_jobs)
    if print_unit:
        from lockstep.service.process.unit import check_unit, unit_of  # as above

        home.create()  # systemd writes the service's log into it
        warn_if_programs_run_as_root({"programsWarning": check_unit(settings)})
        print_document(f"{unit_of(settings)}\n")
        return None
    with ERRORS.status("starting the service"):
        running = start(settings)
    return _started(running, settings)


def _started(running: RunningService, settings: Settings) -> Answer:
    from lockstep.client import Client  # as above

    with Client.from_home(settings.home) as client:
        console_url, service = client.console_url(), client.service()

    def show() -> None:
        OUTPUT.print(f"lockstep is up at {running.address.url} (pid {running.pid})")
        OUTPUT.print(f"home {settings.home.path}, bucket {settings.bucket}")
        OUTPUT.print(f"console, signed in, once, for five minutes: {console_url}", soft_wrap=True)
        warn_if_programs_run_as_root(service)

    return Answer(
        show=show,
        document={
            "url": running.address.url,
            "pid": running.pid,
            "home": str(settings.home.path),
            "bucket": settings.bucket,
            "consoleUrl": console_url,
            "programsWarning": service.get("programsWarning", ""),
        },
        hint="to train: lockstep submit JOB --package-path FOLDER --module-name MODULE",
    )
