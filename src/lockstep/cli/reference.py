"""Writes the reference of the command line: `docs/cli.md` and `docs/cli-json.md`.

``python -m lockstep.cli.reference`` writes both; a test compares them with what is there. The commands, the exit codes
and the forms of JSON are read from the code.
"""

from __future__ import annotations

import ast
import inspect
import itertools
import json
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import typer
from pydantic import TypeAdapter

from lockstep import errors
from lockstep.cli import forms as own_forms
from lockstep.cli.answers import AnswerSpec, spec_of
from lockstep.cli.commands import make_app
from lockstep.errors import ExitCode, LockstepError
from lockstep.service.api import forms as rest_forms

COMMANDS_PAGE: Final = "cli.md"
JSON_PAGE: Final = "cli-json.md"
TIMEOUT_S: Final = 120.0

_FIXED: Final[Mapping[str, tuple[str, ...]]] = {"predict": ("PredictionsForm",)}
"""The forms of commands that print JSON only, without being asked for it."""

_INTRODUCTION: Final = """\
# JSON and CSV of the command line

```bash
lockstep jobs --format json | jq -r '.jobs[] | select(.state == "FAILED").jobId'
lockstep describe train_1 --json | jq .lockstep.bill.costUsd
lockstep costs --by day --format csv > costs.csv
```

Every command that shows something, or that says what it did, has `--json`. Commands that list things have
`--format table|json|csv` too; there, `--json` is the same as `--format json`.

- JSON goes to standard output, and nothing else does. Errors, progress and notes go to standard error.
- The [exit code](cli.md#exit-codes) is the same as without `--json`. A command that fails before it has an answer
  prints no JSON. `submit --json` prints the job once it has ended, and exits with 10 if it failed,
  with 29 if it was cancelled.
- The forms below are stable: a field keeps its name, its type and its meaning. New versions may add fields, so ignore
  those that you do not know.
- The same forms describe the REST interface. Where a form is that of AI Platform, the names are too.
- Text is printed in ASCII, with `\\u` escapes for other characters. Times are in UTC, in the form of RFC 3339, or in
  seconds since 1970 where the form says `number`. Amounts of money are decimal strings.

## CSV

The first line names the columns. The cells are quoted as RFC 4180 says, lines end with CR and LF, and the text is
UTF-8. A value that is not there is an empty cell. Times and amounts are as in JSON, not in your time zone. `�` replaces
characters that control a terminal.

Spreadsheets run a cell that begins with `=`, `+`, `-`, `@` or a tab as a formula, and anybody who may submit a job can
choose its labels. So a text that begins with one of these gets an apostrophe before it: `=1+1` becomes `'=1+1`.
Numbers, also negative ones, stay as they are. If a program reads the file, use JSON instead, or remove the apostrophe.

New versions may add columns at the end. Read columns by their names. `lockstep costs` has no row for
the total, so that a sum over a column is right. `lockstep metrics` has one line for each point.
"""


def write_pages(folder: Path) -> None:
    """Writes both pages.

    Args:
        folder: the folder of the documentation.
    """
    commands = folder / COMMANDS_PAGE
    command = [sys.executable, "-P", "-m", "typer", "lockstep.cli.app", "utils", "docs", "--name", "lockstep"]
    subprocess.run([*command, "--output", str(commands)], check=True, capture_output=True, timeout=TIMEOUT_S)
    commands.write_text(f"{commands.read_text('utf-8').rstrip()}\n\n{exit_codes_text()}", "utf-8")
    (folder / JSON_PAGE).write_text(json_text(), "utf-8")


def exit_codes_text() -> str:
    """Returns the section about exit codes, as Markdown."""
    rows = [f"| {code.value} | {meaning} |" for code, meaning in meanings().items()]
    return (
        "## Exit codes\n\n"
        "`lockstep exec` and `lockstep local train` exit with the code of the program that they run.\n\n"
        "| code | meaning |\n|---|---|\n" + "\n".join(rows) + "\n"
    )


def meanings() -> dict[ExitCode, str]:
    """Returns the meaning of each exit code: the text below its line in the source."""
    (body,) = (each.body for each in ast.parse(inspect.getsource(ExitCode)).body if isinstance(each, ast.ClassDef))
    found: dict[ExitCode, str] = {}
    for line, text in itertools.pairwise(body):
        if isinstance(line, ast.Assign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
            found[ExitCode[ast.unparse(line.targets[0])]] = str(text.value.value)
    return found


def error_classes() -> list[type[LockstepError]]:
    """Returns all classes of errors that users see."""
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, LockstepError)]
    return sorted(kinds, key=lambda kind: kind.exit_code)


def commands_with_json() -> dict[str, AnswerSpec]:
    """Returns what each command's JSON is, by the command without ``lockstep``, in the order of the help."""
    found: dict[str, AnswerSpec] = {}
    for name, command in commands_of(typer.main.get_command(make_app())):
        spec = spec_of(command.callback)
        if spec is not None and spec.forms:
            found[name] = spec
        elif name in _FIXED:
            found[name] = AnswerSpec(forms=_FIXED[name], is_list=False, is_lines=False)
    return found


def csv_columns() -> dict[str, list[str]]:
    """Returns the columns of each command's CSV: those that its module has as ``COLUMNS``."""
    found: dict[str, list[str]] = {}
    for name, command in commands_of(typer.main.get_command(make_app())):
        spec = spec_of(command.callback)
        if spec is not None and spec.is_list:
            found[name] = [column.name for column in sys.modules[command.callback.__module__].COLUMNS]
    return found


def form_named(name: str) -> Any:
    """Returns a form by its name."""
    return getattr(own_forms, name) if hasattr(own_forms, name) else getattr(rest_forms, name)


def json_text() -> str:
    """Returns the page about JSON and CSV, as Markdown."""
    commands = commands_with_json()
    names = sorted({name for spec in commands.values() for name in spec.forms})
    definitions: dict[str, Any] = {}
    titles: dict[str, str] = {}
    for name in names:
        schema = TypeAdapter(form_named(name)).json_schema(mode="serialization", ref_template="{model}")
        definitions |= schema.pop("$defs", {})
        titles[name] = schema.get("title", name) if "$ref" not in schema else schema["$ref"]
        if "$ref" not in schema:
            definitions[titles[name]] = schema
    rows = [_command_row(name, spec, titles) for name, spec in commands.items()]
    columns = csv_columns().items()
    return "\n".join(
        (
            _INTRODUCTION,
            "| command | columns of its CSV |\n|---|---|",
            *(f"| `lockstep {name}` | {', '.join(f'`{column}`' for column in each)} |" for name, each in columns),
            "",
            "## Commands\n",
            "| command | prints | options |\n|---|---|---|",
            *rows,
            "\n## Forms\n",
            "A field with a `?` is not always there. `null` means that there is no value.",
            *(line for name in sorted(definitions) for line in _form_lines(name, definitions[name])),
            "",
        )
    )


def commands_of(group: Any, *path: str) -> Iterator[tuple[str, Any]]:
    """Yields all commands of a group and of the groups in it, each with its path, such as ``keys create``.

    Args:
        group: a group of click's.
        *path: the names that lead to it.
    """
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands_of(command, *path, name)
        else:
            yield " ".join((*path, name)), command


def _command_row(name: str, spec: AnswerSpec, titles: Mapping[str, str]) -> str:
    linked = " or ".join(_link(titles[form]) for form in spec.forms)
    options = "always" if name in _FIXED else "`--format`, `--json`" if spec.is_list else "`--json`"
    return f"| `lockstep {name}` | {linked}{', one on each line' if spec.is_lines else ''} | {options} |"


def _link(name: str) -> str:
    return f"[{name}](#{name.lower()})"


def _form_lines(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    yield f"\n### {name}\n"
    if text := schema.get("description"):
        yield " ".join(textwrap.dedent(text).split("\n\n")[0].split()).replace("``", "`") + "\n"
    if "enum" in schema:
        yield ", ".join(f"`{value}`" for value in schema["enum"])
        return
    yield "| field | type |\n|---|---|"
    required = schema.get("required", ())
    for field, of in schema.get("properties", {}).items():
        yield f"| `{field}`{'' if field in required else '?'} | {_type_text(of)} |"


def _type_text(schema: Mapping[str, Any]) -> str:
    """Returns a type of JSON Schema in words, with links to forms."""
    if "$ref" in schema:
        return _link(schema["$ref"])
    if "anyOf" in schema:
        return " or ".join(_type_text(each) for each in schema["anyOf"])
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    match schema.get("type"):
        case "array":
            return f"list of {_type_text(schema.get('items', {}))}"
        case "object":
            inner = schema.get("additionalProperties", True)
            return f"object of {_type_text(inner)}" if isinstance(inner, dict) else "object"
        case None:
            return "any JSON"
        case name:
            return str(name)


if __name__ == "__main__":
    write_pages(Path("docs"))
