"""``lockstep``: registers the commands, and prints each error as one line, with an exit code."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any, Final, cast

import typer

import lockstep
from lockstep.cli import (
    bucket,
    cancel,
    cluster,
    costs,
    data,
    deploy,
    describe,
    down,
    export,
    image,
    jobs,
    keys,
    local,
    logs,
    metrics,
    migrate,
    models,
    plan,
    predict,
    secrets,
    shell,
    status,
    submit,
    submit_prediction,
    undeploy,
    up,
    update,
    whoami,
)
from lockstep.cli.console import ERRORS, print_line
from lockstep.errors import LockstepError

USAGE_ERROR: Final = cast("type[Exception]", typer.BadParameter.__base__)
"""Typer's error for wrong usage: an unknown option, a missing argument, or a value of the wrong type."""

app = typer.Typer(
    name="lockstep",
    help="Train Keras models as managed jobs, from a laptop to a cluster, and serve them.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("up")(up.up)
app.command("down")(down.down)
app.command("status")(status.status)
app.command("whoami")(whoami.whoami)
app.command("plan")(plan.plan)
app.command("migrate")(migrate.migrate)
app.command("submit")(submit.submit)
app.command("submit-prediction")(submit_prediction.submit_prediction)
app.command("jobs")(jobs.jobs)
app.command("describe")(describe.describe)
app.command("logs")(logs.logs)
app.command("metrics")(metrics.metrics)
app.command("update")(update.update)
app.command("cancel")(cancel.cancel)
app.command("exec")(shell.execute)
app.command("costs")(costs.costs)
app.command("deploy")(deploy.deploy)
app.command("export")(export.export)
app.command("undeploy")(undeploy.undeploy)
app.command("predict")(predict.predict)
app.add_typer(models.app, name="models")
app.add_typer(keys.app, name="keys")
app.add_typer(secrets.app, name="secrets")
app.add_typer(cluster.app, name="cluster")
app.add_typer(local.app, name="local")
app.add_typer(image.app, name="image")
app.add_typer(bucket.app, name="bucket")
app.add_typer(data.app, name="data")


def _show_version(asked: bool) -> None:
    if asked:
        print_line(f"lockstep {lockstep.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train Keras models as managed jobs, from a laptop to a cluster, and serve them."""


def _print_usage_error(error: Any) -> int:
    message = error.format_message().rstrip(".")
    if message.startswith("Usage:"):  # a command without arguments shows its help
        print_line(message)
    else:
        path = "lockstep" if error.ctx is None else error.ctx.command_path
        ERRORS.print(f"lockstep: error: {message}; see `{path} --help`")
    return error.exit_code


def main() -> None:
    """Runs the command line, and exits with the exit code of the error, if there is one."""
    try:
        sys.exit(app(prog_name="lockstep", standalone_mode=False))
    except USAGE_ERROR as error:
        sys.exit(_print_usage_error(cast("Any", error)))
    except LockstepError as error:
        ERRORS.print(f"lockstep: error: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):  # the latter: Ctrl-C or Ctrl-D at a prompt
        sys.exit(130)
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of the output has ended (`lockstep logs J | head`). Typer takes this for a failure, but it is none,
        # and Python's own flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)


if __name__ == "__main__":
    main()
