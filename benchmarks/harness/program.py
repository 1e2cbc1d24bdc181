"""A benchmark's program: its options, its tables, its file of results and its end."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, final

from harness.columns import Cell, show_results
from harness.machine import describe_machine, line_of
from harness.options import chosen_from, count
from harness.results import Result
from harness.sides import HERE
from harness.tables import console

DATA: Final = HERE / ".data"
RESULTS: Final = HERE / "results"


def as_json(told: Mapping[str, Any], results: Sequence[Result]) -> str:
    """Returns a file of results: each is a line, so that it can be read and compared."""
    lines = ",\n".join(f"    {json.dumps(asdict(one))}" for one in results)
    return json.dumps(told, indent=2).removesuffix("\n}") + f',\n  "results": [\n{lines}\n  ]\n}}\n'


@final
class Program:
    """The frame of a benchmark.

    Args:
        description: what it measures.
        folder: where environments, data and logs are kept by default, in ``benchmarks/.data``.
        num_rounds: the default number of rounds; None if it has no rounds.

    Attributes:
        parser: the parser of its options, for more of them.
    """

    def __init__(self, description: str | None, *, folder: str = "", num_rounds: int | None = None) -> None:
        self.parser = argparse.ArgumentParser(
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
        )
        self.add = self.parser.add_argument
        if num_rounds is not None:
            self.add("--rounds", type=count, default=num_rounds, help="rounds of each side (default: %(default)s)")
        self.add("--folder", type=Path, default=DATA / folder, help="where environments, data and logs are kept")
        self.add("--json", type=Path, help=f"where results are written (default: {RESULTS}/PROGRAM-DATE.json)")
        self.add("--small", action="store_true", help="small sizes, to see whether it works; no result")
        self._name = self.parser.prog.removesuffix(".py")
        self._machine: dict[str, Any] = {}
        self._options = argparse.Namespace()

    def add_choice(self, name: str, allowed: Sequence[str], *, default: Sequence[str] | None = None) -> None:
        """Adds an option whose value is some of the names, with commas between them; all by default."""
        shown = "all" if default is None else ",".join(default)
        text = f"some of {','.join(allowed)} (default: {shown})"
        self.add(name, type=chosen_from(allowed), default=list(default or allowed), help=text)

    def parse(self, *, small: Mapping[str, Any]) -> argparse.Namespace:
        """Parses the command line, and prints what it is measured on.

        Args:
            small: the defaults with ``--small``. Its results lie in the folder, unless ``--json`` names a file.
        """
        if self.parser.parse_known_args()[0].small:
            self.parser.set_defaults(**small)
        options = self._options = self.parser.parse_args()
        self._machine = describe_machine()
        options.folder = options.folder.resolve()
        written = RESULTS / f"{self._name}-{self._machine['date']}.json"
        options.json = options.json or (options.folder / f"{self._name}.json" if options.small else written)
        console.print(f"{line_of(self._machine)}\n{self._command()}\n")
        return options

    def logs(self, *names: object) -> Path:
        """Returns the folder for the messages of sides."""
        return self._options.folder.joinpath("logs", self._name, *map(str, names))

    def finish(
        self,
        results: Sequence[Result],
        shown: Mapping[str, Cell] | None = None,
        *,
        packages: Mapping[str, str],
        **more: Any,
    ) -> None:
        """Shows results and writes them, with the machine, the command and the versions that they are of.

        Args:
            results: the results. If one has an error, the program ends with it.
            shown: the columns of a table of all results, if they were not shown before.
            packages: the versions of each side's packages.
            more: further keys of the file.
        """
        if shown is not None:
            show_results(results, shown)
        path = self._options.json
        told = {"machine": self._machine, "command": self._command(), "isSmall": self._options.small, **more}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(as_json({**told, "packages": dict(packages)}, results))
        console.print(f"results: {path}")
        errors = [one.error for one in results if one.error]
        if errors:
            self.fail("\n".join(errors))

    def fail(self, message: str) -> None:
        """Ends the program with a message."""
        sys.exit(f"benchmarks/{self._name}.py: {message}")

    def _command(self) -> str:
        return shlex.join(["python", f"benchmarks/{self._name}.py", *sys.argv[1:]])
