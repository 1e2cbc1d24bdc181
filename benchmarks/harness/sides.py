"""The sides of a benchmark as processes, and rounds in which they take turns."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from harness.protocol import MARK

HERE: Final = Path(__file__).resolve().parent.parent
ANSWER_S: Final = 3600.0
"""Longer than any compilation."""
NOTICE_S: Final = 0.5
ENDING_S: Final = 30.0
NUM_LINES: Final = 15
DROPPED: Final = ("JAX_COMPILATION_CACHE_DIR", "JAX_PLATFORMS", "XLA_FLAGS", "KERAS_BACKEND")
"""Variables that no side inherits: they would give one side another backend, or programs of an earlier run."""


class SideError(Exception):
    """A side's process has ended, or does not answer."""


def environment_of(given: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables of a side's process: this process's, without `DROPPED`, and those given."""
    variables = {name: value for name, value in os.environ.items() if name not in DROPPED}
    variables["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    return {**variables, **given}


@final
@dataclass(frozen=True, kw_only=True)
class SideSpec:
    """What a side is.

    Attributes:
        title: its name in tables and messages.
        python: its Python.
        module: its program, a module of ``benchmarks``.
        order: what it is to do.
        environment: all variables of its process; see `environment_of`.
    """

    title: str
    python: Path
    module: str
    order: Mapping[str, Any]
    environment: Mapping[str, str]


@final
class Side:
    """A side's process.

    Args:
        spec: what it is.
        log: where its messages go.
    """

    def __init__(self, spec: SideSpec, *, log: Path) -> None:
        self._spec, self._log = spec, log
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as messages:
            self._process = subprocess.Popen(
                [str(spec.python), "-m", spec.module, json.dumps(dict(spec.order))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                bufsize=0,  # so that what select sees is all that there is
                env=dict(spec.environment),
                cwd=HERE,
            )

    def ask(self) -> None:
        """Asks for a round.

        Raises:
            SideError: it has ended.
        """
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._error("has ended") from None

    def hear(self) -> dict[str, Any]:
        """Waits for what it says next.

        Raises:
            SideError: it has ended, or says nothing within `ANSWER_S` seconds.
        """
        assert self._process.stdout is not None
        deadline = time.monotonic() + ANSWER_S
        while time.monotonic() < deadline:
            if not select.select([self._process.stdout], [], [], NOTICE_S)[0]:
                continue
            line = self._process.stdout.readline().decode()
            if line.startswith(MARK):
                return json.loads(line.removeprefix(MARK))
            if not line:
                raise self._error("has ended")
        raise self._error(f"has said nothing for {ANSWER_S:.0f} s")

    def end(self) -> None:
        """Ends the process."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()

    def kill(self) -> None:
        """Ends the process at once, whatever it does."""
        self._process.kill()
        self.end()

    def _error(self, what: str) -> SideError:
        last = "\n".join(self._log.read_text(errors="replace").splitlines()[-NUM_LINES:])
        return SideError(f"{self._spec.title} {what}; see {self._log}:\n{last}")


@final
@dataclass(kw_only=True)
class Heard:
    """What a side has said.

    Attributes:
        ready: its first line.
        rounds: its answers, one for each round.
        error: why there is less, or nothing.
    """

    ready: dict[str, Any] = field(default_factory=dict)
    rounds: list[dict[str, Any]] = field(default_factory=list)
    error: str = ""


def take_turns(specs: Mapping[str, SideSpec], *, num_rounds: int, logs: Path) -> dict[str, Heard]:
    """Starts the sides one after the other, and lets them do rounds in turn. Each round begins with another side.

    One process works at a time: the others wait for their line. A first turn is for warming up, and does not count.

    Args:
        specs: the sides, by name.
        num_rounds: how many rounds each does.
        logs: the folder of their messages.

    Returns:
        What each side has said. A side that fails is left out of the rounds that follow.
    """
    heard = {name: Heard() for name in specs}
    sides: dict[str, Side] = {}
    with ExitStack() as stack:
        for name, spec in specs.items():
            sides[name] = Side(spec, log=logs / f"{name}.log")
            stack.callback(sides[name].end)
            try:
                heard[name].ready = sides[name].hear()
            except SideError as error:
                heard[name].error = str(error)
        for number in range(-1, num_rounds):
            names = [name for name in sides if not heard[name].error]
            first = number % max(1, len(names))
            for name in names[first:] + names[:first]:
                try:
                    sides[name].ask()
                    answer = sides[name].hear()
                    if number >= 0:
                        heard[name].rounds.append(answer)
                except SideError as error:
                    heard[name].error = str(error)
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return heard


def errors_of(heard: Iterable[Heard]) -> list[str]:
    """Returns the errors of the sides that failed."""
    return [one.error for one in heard if one.error]
