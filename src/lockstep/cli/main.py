"""``lockstep``: runs a command, and prints each error as one line, with an exit code."""

from __future__ import annotations

import os
import sys
import traceback
from typing import Any, Final, cast

import typer

from lockstep.cli.commands import make_app
from lockstep.cli.console import ERRORS, print_line
from lockstep.errors import ExitCode, LockstepError

USAGE_ERROR: Final = cast("type[Exception]", typer.BadParameter.__base__)
"""Typer's error for wrong usage: an unknown option, a missing argument, or a value of the wrong type."""
_COMPLETE: Final = "_LOCKSTEP_COMPLETE"
"""The variable with which a shell's script asks for completions."""


_PYDANTICS: Final = "Value error, "
"""What Pydantic, by which Typer converts some arguments, puts before a message."""


def _print_usage_error(error: Any) -> int:
    message = error.format_message().rstrip(".").replace(_PYDANTICS, "")
    if message.startswith("Usage:"):  # a command without arguments shows its help
        print_line(message)
    else:
        path = "lockstep" if error.ctx is None else error.ctx.command_path
        ERRORS.print(f"lockstep: error: {message}; see `{path} --help`")
    return error.exit_code


def _used_command() -> str:
    """Returns the first word of the command line, of this process or of the shell that asks for completions."""
    if _COMPLETE not in os.environ:
        return next((word for word in sys.argv[1:] if word != "--"), "")
    line = os.environ.get("COMP_WORDS", os.environ.get("_TYPER_COMPLETE_ARGS", ""))
    words = line.split()
    is_whole = len(words) > 2 or (len(words) == 2 and line[-1].isspace())
    return words[1] if is_whole else ""


def _answer_shell() -> None:
    """Prepares Typer to answer a shell that asks for completions."""
    from typer.completion import completion_init  # pyright: ignore[reportPrivateImportUsage] - without its options

    completion_init()


def main() -> None:
    """Runs the command line, and exits with the exit code of the error, if there is one."""
    try:
        if _COMPLETE in os.environ:
            _answer_shell()
        app = make_app(_used_command())
        sys.exit(app(prog_name="lockstep", standalone_mode=False))
    except USAGE_ERROR as error:
        sys.exit(_print_usage_error(cast("Any", error)))
    except LockstepError as error:
        ERRORS.print(f"lockstep: error: {error}")
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, typer.Abort):  # the latter: Ctrl-C or Ctrl-D at a prompt
        sys.exit(ExitCode.INTERRUPTED)
    except SystemExit as error:
        if not isinstance(error.__context__, BrokenPipeError):
            raise
        # The reader of the output has ended (`lockstep logs J | head`). Typer takes this for a failure, but it is none,
        # and Python's own flush must not fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.SUCCESS)
    except Exception:
        ERRORS.print(traceback.format_exc().removesuffix("\n"))
        sys.exit(ExitCode.INTERNAL)


if __name__ == "__main__":
    main()
