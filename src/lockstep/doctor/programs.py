"""Runs other programs for a bounded time."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, final

from lockstep.doctor.surroundings import Surroundings

LIMIT_S: Final = 6.0
KILL_S: Final = 2.0


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a program did.

    Attributes:
        code: its exit code; the negative number of a signal that ended it; None if it did not end in time.
        output: its standard output.
        errors: its standard error.
    """

    code: int | None
    output: str = ""
    errors: str = ""

    @property
    def last_line(self) -> str:
        """The last line of standard error, or else of standard output, in at most 300 characters."""
        if self.code is None:
            return "it did not end in time"
        lines = [line for line in (self.errors.strip() or self.output.strip()).splitlines() if line.strip()]
        return lines[-1].strip()[:300] if lines else f"exit code {self.code}"


def ask(arguments: Sequence[str], *, env: Mapping[str, str], limit_s: float = LIMIT_S) -> Answer | None:
    """Runs a program to its end; returns None if it is not installed. Blocks for `limit_s` and little longer at most.

    A program that does not end in time is killed, with the programs that it started.

    Args:
        arguments: the program and its arguments. They contain no secrets: all users of the machine can read them.
        env: its environment variables, in whose ``PATH`` it is looked for.
        limit_s: how long it may run, in seconds.
    """
    path = shutil.which(arguments[0], path=env.get("PATH"))
    if path is None:
        return None
    try:
        process = subprocess.Popen(
            [path, *arguments[1:]],
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as problem:
        return Answer(code=127, errors=problem.strerror or type(problem).__name__)
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):  # the kernel may keep it: a disk or a driver hangs
            process.communicate(timeout=KILL_S)
        return Answer(code=None)
    return Answer(
        code=process.returncode, output=output.decode(errors="replace"), errors=errors.decode(errors="replace")
    )


def has_program(name: str, surroundings: Surroundings) -> bool:
    """Whether a program is on the path."""
    return shutil.which(name, path=surroundings.env.get("PATH")) is not None
