"""The sides of a benchmark as processes, and rounds in which they take turns."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from harness.protocol import MARK
from harness.turns import turns

HERE: Final = Path(__file__).resolve().parent.parent
ANSWER_S: Final = 3600.0
"""Longer than any compilation."""
NOTICE_S: Final = 0.5
ENDING_S: Final = 30.0
NUM_LINES: Final = 15
READ_BYTES: Final = 2**16
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
        module: its program, a module of ``benchmarks``.
        order: what it is to do.
        python: its Python.
        variables: what its environment has besides `environment_of`.
    """

    title: str
    module: str
    order: Mapping[str, Any]
    python: Path = Path(sys.executable)
    variables: Mapping[str, str] = field(default_factory=dict)


@final
class Side:
    """A side's process.

    Args:
        spec: what it is.
        log: where its messages go.
    """

    def __init__(self, spec: SideSpec, *, log: Path) -> None:
        self._spec, self._log = spec, log
        self._heard = b""
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("w") as messages:
            self._process = subprocess.Popen(
                [str(spec.python), "-m", spec.module, json.dumps(dict(spec.order))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                bufsize=0,  # so that what select sees is all that there is
                env=environment_of(spec.variables),
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
            line, ended, rest = self._heard.partition(b"\n")
            if ended:
                self._heard = rest
                if line.startswith(MARK.encode()):
                    return json.loads(line.removeprefix(MARK.encode()))
            elif select.select([self._process.stdout], [], [], NOTICE_S)[0]:
                found = os.read(self._process.stdout.fileno(), READ_BYTES)
                if not found:
                    raise self._error("has ended")
                self._heard += found
        raise self._error(f"has said nothing for {ANSWER_S:.0f} s")

    def answer(self) -> dict[str, Any]:
        """Asks for a round, and waits for its answer.

        Raises:
            SideError: it has ended, or says nothing within `ANSWER_S` seconds.
        """
        self.ask()
        return self.hear()

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

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

    def terminate(self) -> None:
        """Asks the process to end at once, with what it has started."""
        self._process.terminate()

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
    """Starts the sides one after the other, and lets them do rounds in turn.

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
        for number, name in turns(sides, num_rounds=num_rounds, warms_up=True):
            if not heard[name].error:
                try:
                    answer = sides[name].answer()
                except SideError as error:
                    heard[name].error = str(error)
                    continue
                if number >= 0:
                    heard[name].rounds.append(answer)
    return heard


def fresh_round(spec: SideSpec, *, log: Path) -> dict[str, Any]:
    """Starts a side for one round, and ends it: for what a process does once.

    Returns:
        What it said when it was ready, and its answer.

    Raises:
        SideError: it has ended.
    """
    with running(spec, log=log) as side:
        return {**side.hear(), **side.answer()}


@contextmanager
def running(spec: SideSpec, *, log: Path) -> Iterator[Side]:
    """Starts a side, and ends it with the context: at once where that ends by an error or a signal."""
    side = Side(spec, log=log)
    try:
        yield side
    except BaseException:
        side.terminate()
        raise
    finally:
        side.end()
