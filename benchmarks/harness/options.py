"""Options that all benchmarks have, and how they are parsed."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from harness.sides import HERE

DATA: Final = HERE / ".data"
RESULTS: Final = HERE / "results"


def chosen_from(allowed: Sequence[str]) -> Callable[[str], list[str]]:
    """Returns a parser of names with commas between them."""

    def parse(text: str) -> list[str]:
        names = text.split(",")
        unknown = [name for name in names if name not in allowed]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; allowed: {', '.join(allowed)}")
        return names

    return parse


def count(text: str) -> int:
    """Parses one positive whole number."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"received {text}; allowed: a whole number of 1 or more")
    return int(text)


def counts(text: str) -> list[int]:
    """Parses positive whole numbers with commas between them."""
    return [count(part) for part in text.split(",")]


def add_choice(parser: argparse.ArgumentParser, name: str, allowed: Sequence[str], *, default: Any = None) -> None:
    """Adds an option whose value is some of the names, with commas between them; all by default."""
    parser.add_argument(
        name,
        type=chosen_from(allowed),
        default=list(allowed) if default is None else default,
        help=f"some of {','.join(allowed)} (default: {'all' if default is None else ','.join(default)})",
    )


def make_parser(description: str | None, *, num_rounds: int | None = None, folder: str = "") -> argparse.ArgumentParser:
    """Makes a parser with the options of all benchmarks; `parse_options` belongs to it.

    Args:
        description: what the program measures.
        num_rounds: the default number of rounds; None if it has no rounds.
        folder: where environments, data and logs are kept by default, in ``benchmarks/.data``.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    if num_rounds is not None:
        parser.add_argument(
            "--rounds", type=count, default=num_rounds, help="rounds of each side (default: %(default)s)"
        )
    parser.add_argument("--folder", type=Path, default=DATA / folder, help="where environments, data and logs are kept")
    parser.add_argument("--json", type=Path, help=f"where results are written (default: {RESULTS}/PROGRAM-DATE.json)")
    parser.add_argument("--small", action="store_true", help="small sizes, to see whether it works; no result")
    return parser


def parse_options(parser: argparse.ArgumentParser, *, small: Mapping[str, Any]) -> argparse.Namespace:
    """Parses the command line.

    Args:
        parser: of `make_parser`.
        small: the defaults with ``--small``. Its results lie in the folder, unless ``--json`` names a file.
    """
    if parser.parse_known_args()[0].small:
        parser.set_defaults(**small)
    options = parser.parse_args()
    options.folder = options.folder.resolve()
    options.name = parser.prog.removesuffix(".py")
    written = RESULTS / f"{options.name}-{time.strftime('%Y-%m-%d')}.json"
    options.json = options.json or (options.folder / f"{options.name}.json" if options.small else written)
    return options
