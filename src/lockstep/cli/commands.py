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
        "up": ("up:up", "Start the service on this machine, with its engine, database and REST interface."),
        "down": ("down:down", "Stop the service, its engine and its prediction servers."),
        "status": ("status:status", "Show the state of the service."),
        "doctor": (
            "doctor:doctor",
            "Check this machine and what you can reach from it, and print the command that mends each fault.",
        ),
        "open": ("open_console:open_console", "Open the console in a browser, signed in with your key."),
        "cluster": ("cluster:app", "Choose and show the machines that jobs run on."),
        "costs": ("costs:costs", "Show the costs of finished jobs, and of running jobs up to now."),
    },
    "Jobs": {
        "submit": ("submit:submit", "Submit a training job, and print its log until it ends."),
        "submit-prediction": (
            "submit_prediction:submit_prediction",
            "Submit a batch prediction: predict files of instances, and write files of predictions.",
        ),
        "jobs": ("jobs:jobs", "List jobs, the newest first."),
        "describe": (
            "describe:describe",
            "Show a job: its state, transitions, replicas and cost, and where its results are stored.",
        ),
        "logs": ("logs:logs", "Print the log of a job or of a model's prediction server."),
        "metrics": (
            "metrics:metrics",
            "Show the metrics of a job's replicas, or of a model's prediction servers, over time.",
        ),
        "top": (
            "top:top",
            "Show live what a job uses: CPU, memory, GPUs, network, examples per second, progress and cost so far.",
        ),
        "artifacts": (
            "artifacts:artifacts",
            "List or download the files that a job left: models, checkpoints, TensorBoard files.",
        ),
        "trials": ("trials:trials", "List the trials of a search over hyperparameters, the best first."),
        "tensorboard": ("tensorboard:tensorboard", "Start TensorBoard on the event files of one or several jobs."),
        "profile": (
            "profile:profile",
            "Record a JAX profile of a running job's next training steps, and download it.",
        ),
        "exec": (
            "shell:execute",
            "Run a command or an interactive shell beside a replica's program, in its environment and folder.",
        ),
        "update": ("update:update", "Change a job's labels."),
        "cancel": ("cancel:cancel", "Cancel a job."),
    },
    "Models": {
        "deploy": (
            "deploy:deploy",
            "Deploy a model as a new version, wait until it is ready, and give it traffic.",
        ),
        "predict": (
            "predict:predict",
            'Request predictions from a deployed model, and print them as {"predictions": [...]}.',
        ),
        "models": ("models:app", "List, describe, release, scale and delete deployed models and their versions."),
        "undeploy": (
            "undeploy:undeploy",
            "Delete a version, or a model with all its versions, and wait until the prediction servers have ended.",
        ),
        "export": (
            "export:export",
            "Export a .keras file to another format, and check it against the original on random inputs.",
        ),
    },
    "Data": {
        "data": ("data:app", "Pack data sets into a bucket, and look at what is packed."),
        "bucket": ("bucket:app", "Make buckets, and list, copy and delete what is in them."),
    },
    "Scripts, without a service": {
        "init": ("init:init", "Write a script and a job configuration to begin with."),
        "local": ("local:app", "Run a job's program on this machine, without a service."),
        "image": ("image:app", "Build and push container images for jobs, with podman or docker."),
        "plan": (
            "plan:plan",
            "Compile a script's training step for TPUs that you do not have: memory, traffic, operations, time, cost.",
        ),
        "migrate": ("migrate:migrate", "Rewrite scripts of tf.keras and tf.distribute for Keras 3 and Lockstep."),
    },
    "Access": {
        "whoami": ("whoami:whoami", "Show whose key you use, its permissions, and the address of the service."),
        "keys": ("keys:app", "Create, list and revoke API keys."),
        "secrets": ("secrets:app", "Set, list and remove a project's secrets."),
        "webhooks": ("webhooks:app", "Show what was delivered to webhooks."),
    },
    "Your shell": {
        "completion": (
            "completion:completion",
            "Print a script with which your shell completes commands, options, and the names that the service has.",
        ),
    },
}
"""The commands and groups of commands, in the order and under the titles of the help.

Each has its module and its name there, and the first sentence of its help, so that the list of all commands is shown
without their modules. A test compares the sentences.
"""
_COMMANDS: Final = {name: command for section in _SECTIONS.values() for name, command in section.items()}


@final
class _Sections(AbstractGroup):
    """The top level of the command line."""

    def sections(self) -> Mapping[str, Sequence[str]]:
        """Returns the commands by what they are for."""
        return {title: list(places) for title, places in _SECTIONS.items()}


def make_app(used: str | None = None) -> typer.Typer:
    """Returns the command line.

    Args:
        used: the first argument, which names the only command that is used. If there is no such command, the command
            line has all of them with nothing but their names and the first sentences of their help. If it is None, it
            has all of them.
    """
    app = App(
        "Train Keras models as managed jobs, from a laptop to a cluster, and serve them.",
        cls=_Sections,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_options)
    if used in _COMMANDS:
        _add(app, used)
        return app
    for name, (_, sentence) in _COMMANDS.items():
        if used is None:
            _add(app, name)
        elif used != "--version":
            app.list_command(name, sentence)
    return app


def _add(app: App, name: str) -> None:
    """Imports a command, and adds it to the command line."""
    place, _ = _COMMANDS[name]
    loaded = _load(place)
    if isinstance(loaded, typer.Typer):
        app.add_typer(loaded, name=name)
    else:
        app.command(name)(loaded)


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
