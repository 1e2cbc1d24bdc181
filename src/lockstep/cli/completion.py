"""``lockstep completion``."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, final

import typer

from lockstep.cli.console import print_document


@final
class Shell(StrEnum):
    """A shell that completes commands."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print a script with which your shell completes commands, options, and the names that the service has.

    These are the names of jobs, models, versions and secrets, and the ids of keys. The service has a second to answer;
    otherwise nothing is completed.

    For bash, add this line to ~/.bashrc:

        source <(lockstep completion bash)

    For zsh, add this line to ~/.zshrc, after compinit:

        source <(lockstep completion zsh)

    For fish, run this command once:

        lockstep completion fish > ~/.config/fish/completions/lockstep.fish
    """
    # Imported here because other commands do not need it.
    from typer.completion import get_completion_script  # pyright: ignore[reportPrivateImportUsage] - nowhere public

    script = get_completion_script(prog_name="lockstep", complete_var="_LOCKSTEP_COMPLETE", shell=shell.value)
    print_document(f"{script}\n")
