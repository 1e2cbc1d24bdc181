"""The commands of ``lockstep``. A command's module is imported when the command is used, or its help is shown.

Importing all of them takes several times as long as most commands.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any, Final

import typer

import lockstep
from lockstep.cli.console import print_line

_COMMANDS: Final = {
    "up": "up:up",
    "down": "down:down",
    "status": "status:status",
    "whoami": "whoami:whoami",
    "plan": "plan:plan",
    "migrate": "migrate:migrate",
    "submit": "submit:submit",
    "submit-prediction": "submit_prediction:submit_prediction",
    "jobs": "jobs:jobs",
    "describe": "describe:describe",
    "logs": "logs:logs",
    "metrics": "metrics:metrics",
    "update": "update:update",
    "cancel": "cancel:cancel",
    "exec": "shell:execute",
    "costs": "costs:costs",
    "deploy": "deploy:deploy",
    "export": "export:export",
    "undeploy": "undeploy:undeploy",
    "predict": "predict:predict",
}
"""The commands, in the order of the help, with their modules and functions."""

_GROUPS: Final = ("models", "keys", "secrets", "cluster", "local", "image", "bucket", "data")
"""The groups of commands, each with a module of its name that has a Typer application."""


def make_app(used: str | None = None) -> typer.Typer:
    """Returns the command line.

    Args:
        used: the first argument, which names the only command that is used. If there is no such command, or it is
            None, the command line has all of them, for its help and its error messages.
    """
    app = typer.Typer(
        name="lockstep",
        help="Train Keras models as managed jobs, from a laptop to a cluster, and serve them.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_options)
    names = [] if used == "--version" else [*_COMMANDS, *_GROUPS]
    for name in [used] if used in names else names:
        if name in _COMMANDS:
            app.command(name)(_load(_COMMANDS[name]))
        else:
            app.add_typer(_load(f"{name}:app"), name=name)
    return app


def _load(place: str) -> Any:
    module, _, attribute = place.partition(":")
    return getattr(import_module(f"lockstep.cli.{module}"), attribute)


def _show_version(asked: bool) -> None:
    if asked:
        print_line(f"lockstep {lockstep.__version__}")
        raise typer.Exit


def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Train Keras models as managed jobs, from a laptop to a cluster, and serve them."""
