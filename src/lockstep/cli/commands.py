"""The commands of ``lockstep``. A command's module is imported when the command is used, or its help is shown.

Importing all of them takes several times as long as most commands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Any, Final, final

import typer

import lockstep
from lockstep.cli.console import print_line
from lockstep.cli.help import AbstractGroup, App

_SECTIONS: Final = {
    "Service": {
        "up": "up:up",
        "down": "down:down",
        "status": "status:status",
        "doctor": "doctor:doctor",
        "open": "open_console:open_console",
        "cluster": "cluster:app",
        "costs": "costs:costs",
    },
    "Jobs": {
        "submit": "submit:submit",
        "submit-prediction": "submit_prediction:submit_prediction",
        "jobs": "jobs:jobs",
        "describe": "describe:describe",
        "logs": "logs:logs",
        "metrics": "metrics:metrics",
        "top": "top:top",
        "artifacts": "artifacts:artifacts",
        "tensorboard": "tensorboard:tensorboard",
        "exec": "shell:execute",
        "update": "update:update",
        "cancel": "cancel:cancel",
    },
    "Models": {
        "deploy": "deploy:deploy",
        "predict": "predict:predict",
        "models": "models:app",
        "undeploy": "undeploy:undeploy",
        "export": "export:export",
    },
    "Data": {
        "data": "data:app",
        "bucket": "bucket:app",
    },
    "Scripts, without a service": {
        "init": "init:init",
        "local": "local:app",
        "image": "image:app",
        "plan": "plan:plan",
        "migrate": "migrate:migrate",
    },
    "Access": {
        "whoami": "whoami:whoami",
        "keys": "keys:app",
        "secrets": "secrets:app",
    },
}
"""The commands and groups of commands, in the order and under the titles of the help, with their modules and names."""

_PLACES: Final = {name: place for section in _SECTIONS.values() for name, place in section.items()}


@final
class _Sections(AbstractGroup):
    """The top level of the command line."""

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Returns the commands by what they are for."""
        return {title: list(places) for title, places in _SECTIONS.items()}


def make_app(used: str | None = None) -> typer.Typer:
    """Returns the command line.

    Args:
        used: the first argument, which names the only command that is used. If there is no such command, or it is
            None, the command line has all of them, for its help and its error messages.
    """
    app = App(
        "Train Keras models as managed jobs, from a laptop to a cluster, and serve them.",
        cls=_Sections,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    names = [] if used == "--version" else [*_PLACES]
    for name in [used] if used in names else names:
        loaded = _load(_PLACES[name])
        if isinstance(loaded, typer.Typer):
            app.add_typer(loaded, name=name)
        else:
            app.command(name)(loaded)
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
