"""What a command answers: text for people, or JSON or CSV for programs, and a hint at the next useful command.

A command that lists or shows something, or that says what it did, is decorated with `answers` and returns an `Answer`:

    @answers("JobForm", hints=True)
    def cancel(job: JobArgument) -> Answer:
        ...
        return Answer(document=found, show=lambda: OUTPUT.print("..."), hint=f"lockstep describe {job}")

The decorator adds the options ``--json``, ``--format`` and ``--quiet``, and prints the answer. Nothing else does that.
"""

from __future__ import annotations

import csv
import functools
import inspect
import io
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Final, Self, cast, final, get_type_hints

import typer

from lockstep.cli.console import ERRORS, OUTPUT, print_document, print_json
from lockstep.cli.sanitizing import sanitized
from lockstep.errors import InvalidInputError

FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t")
"""Spreadsheets run a cell that begins with one of these. Such a text gets an apostrophe before it."""

_FORM_OF_ANSWER: Final = "output_format"
"""The parameter of a command that has to know early in which format it answers."""
_SPEC: Final = "answer_spec"


@final
class Format(StrEnum):
    """The format of a list."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


@final
@dataclass(frozen=True, kw_only=True)
class AnswerSpec:
    """What the JSON of a command is.

    Attributes:
        forms: the names of the forms of which the document has one; none if the command has no ``--json``.
        is_list: whether the command lists things, so it has ``--format`` too.
        is_lines: whether it prints one document on each line.
    """

    forms: tuple[str, ...]
    is_list: bool
    is_lines: bool


@final
@dataclass(frozen=True, kw_only=True)
class Column:
    """A column of a list, for its table and its CSV.

    Attributes:
        name: the column's name in CSV: the JSON field that it has, such as ``createTime``.
        title: the column's title in the table; empty if only the CSV has the column.
        value: returns a row's value for CSV; by default that of the row's field `name`.
        text: returns a row's text for the table; by default the value, as text.
        folds: whether a long text of the table is folded, instead of making the column wider.
    """

    name: str
    title: str = ""
    value: Callable[[Any], object] | None = None
    text: Callable[[Any], str] | None = None
    folds: bool = False

    def value_of(self, row: Any) -> object:
        """Returns a row's value for CSV."""
        return row.get(self.name) if self.value is None else self.value(row)

    def text_of(self, row: Any) -> str:
        """Returns a row's text for the table."""
        if self.text is not None:
            return self.text(row)
        value = self.value_of(row)
        return "" if value is None else str(value)


@final
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a command answers.

    Attributes:
        show: prints the answer as text.
        document: the answer as JSON, in the form that the command's decorator names.
        rows: the rows of a list, for CSV.
        columns: the columns of the rows.
        hint: the next useful command, with what it is for: "to see its log: lockstep logs train_1". Empty for none.
        error: raised once the answer is printed; None if the command succeeded.
    """

    show: Callable[[], object]
    document: object = None
    rows: Sequence[Any] = ()
    columns: Sequence[Column] = ()
    hint: str = ""
    error: Exception | None = None

    @classmethod
    def of_list(
        cls, document: object, *, rows: Sequence[Any], columns: Sequence[Column], empty: str, hint: str = ""
    ) -> Self:
        """Returns the answer of a command that lists things in one table.

        Args:
            document: the list as JSON.
            rows: the things, one for each row.
            columns: the columns of the table and the CSV.
            empty: what is printed instead of a table without rows.
            hint: the next useful command; empty for none.
        """
        return cls(
            show=lambda: print_table(rows, columns=columns, empty=empty),
            document=document,
            rows=rows,
            columns=columns,
            hint=hint,
        )


def print_table(rows: Sequence[Any], *, columns: Sequence[Column], empty: str) -> None:
    """Prints rows as a table.

    Args:
        rows: the rows.
        columns: the columns; those without a title are left out.
        empty: what is printed if there are no rows.
    """
    if not rows:
        OUTPUT.print(empty)
        return
    from rich.table import Table  # here, because many commands start without it

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    shown = [column for column in columns if column.title]
    for column in shown:
        table.add_column(column.title, no_wrap=not column.folds, overflow="fold" if column.folds else "ellipsis")
    for row in rows:
        table.add_row(*(column.text_of(row) for column in shown))
    OUTPUT.print(table)


def print_rows(rows: Iterable[Any], *, columns: Sequence[Column], has_header: bool = True) -> None:
    """Prints rows as CSV, as RFC 4180 has it: lines end with CR and LF, and None is an empty cell.

    Args:
        rows: the rows.
        columns: the columns.
        has_header: whether the first line names the columns.
    """
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    if has_header:
        writer.writerow([cell(column.name) for column in columns])
    for row in rows:
        writer.writerow([cell(column.value_of(row)) for column in columns])
    print_document(text.getvalue())


def cell(value: object) -> str:
    """Returns a value as a cell of CSV: a number or a truth value as in JSON, any other text without a formula.

    Characters that control a terminal are replaced, as in all text that the command line prints.

    Args:
        value: None, a number, a truth value, a text, or a sequence of texts, which are joined by commas.
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    joined = value if isinstance(value, str) else ", ".join(map(str, cast("Iterable[object]", value)))
    text = sanitized(joined)  # in a file too: somebody may print it on a terminal
    return f"'{text}" if text.startswith(FORMULA_STARTS) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    """Whether a text is a plain number, such as the decimal strings of amounts."""
    digits = text.removeprefix("-")
    return digits.replace(".", "", 1).isdecimal() and digits.isascii()


def print_hint(hint: str) -> None:
    """Prints the next useful command on standard error, if a person sees it: if both streams are terminals.

    Args:
        hint: the command, with what it is for; empty for none.
    """
    if hint and sys.stdout.isatty() and sys.stderr.isatty():
        ERRORS.print(f"hint: {hint}", style="dim")


def answers(
    *forms: str, is_list: bool = False, is_lines: bool = False, hints: bool = False
) -> Callable[[Callable[..., Answer | None]], Callable[..., None]]:
    """Returns a decorator that adds ``--json``, ``--format`` and ``--quiet`` to a command, and prints its answer.

    A command that prints its answer itself, piece by piece, returns None. A command with a parameter ``output_format``
    receives the `Format`.

    Args:
        *forms: the names of the forms of the command's JSON, in `lockstep.service.api.forms` or
            `lockstep.cli.forms`; without one, the command has no ``--json``.
        is_list: whether the command lists things: it has ``--format table|json|csv``.
        is_lines: whether its JSON is one document on each line.
        hints: whether it prints hints: it has ``--quiet``.
    """
    spec = AnswerSpec(forms=forms, is_list=is_list, is_lines=is_lines)
    added = _added_parameters(spec, hints=hints)

    def decorate(command: Callable[..., Answer | None]) -> Callable[..., None]:
        hinted = get_type_hints(command, include_extras=True)
        given = inspect.signature(command).parameters
        kept = [
            parameter.replace(annotation=hinted[name]) for name, parameter in given.items() if name != _FORM_OF_ANSWER
        ]

        @functools.wraps(command)
        def run(
            *arguments: Any,
            as_json: bool = False,
            as_format: Format | None = None,
            is_quiet: bool = False,
            **options: Any,
        ) -> None:
            chosen = _chosen(as_json=as_json, as_format=as_format)
            if _FORM_OF_ANSWER in given:
                options[_FORM_OF_ANSWER] = chosen
            answer = command(*arguments, **options)
            if answer is not None:
                _print(answer, chosen, has_hint=not is_quiet)

        signature = inspect.Signature([*kept, *added])
        vars(run)["__signature__"] = signature
        run.__annotations__ = {name: each.annotation for name, each in signature.parameters.items()}
        vars(run)[_SPEC] = spec
        return run

    return decorate


def spec_of(command: Any) -> AnswerSpec | None:
    """Returns what the JSON of a command is; None for a command that is not decorated with `answers`.

    Args:
        command: the decorated function, or the callback that Typer made of it.
    """
    return getattr(command, _SPEC, None)


def _added_parameters(spec: AnswerSpec, *, hints: bool) -> list[inspect.Parameter]:
    added: list[tuple[str, Any, object]] = []
    if spec.is_list:
        text = "How to print the list. For programs: JSON or CSV, see docs/cli-json.md."
        added.append(("as_format", Annotated[Format | None, typer.Option("--format", help=text)], None))
    if spec.forms:
        text = "Print JSON, one document on each line." if spec.is_lines else "Print JSON; see docs/cli-json.md."
        added.append(("as_json", Annotated[bool, typer.Option("--json", help=text)], False))
    if hints:
        option = typer.Option("--quiet", envvar="LOCKSTEP_QUIET", help="Do not suggest the next command.")
        added.append(("is_quiet", Annotated[bool, option], False))
    kind = inspect.Parameter.KEYWORD_ONLY
    return [inspect.Parameter(name, kind, default=default, annotation=each) for name, each, default in added]


def _chosen(*, as_json: bool, as_format: Format | None) -> Format:
    if as_json and as_format not in (None, Format.JSON):
        raise InvalidInputError("--json and --format contradict each other", received=f"--format {as_format}")
    return Format.JSON if as_json else as_format or Format.TABLE


def _print(answer: Answer, chosen: Format, *, has_hint: bool) -> None:
    if chosen is Format.JSON:
        print_json(answer.document, indent=2)
    elif chosen is Format.CSV:
        print_rows(answer.rows, columns=answer.columns)
    else:
        answer.show()
        if has_hint:
            print_hint(answer.hint)
    if answer.error is not None:
        raise answer.error
