"""The table of TensorFlow's names: what each is here, and how a script that has it is rewritten.

`symbols.yaml` is the one place that says it. `lockstep migrate` rewrites by it, and the tables of `docs/migrating.md`
are `documented_tables()`.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, final

import yaml
from pydantic import BaseModel, ConfigDict, Field

PAGE: Final = "docs/migrating.md"
"""The page that the table stands on."""


@final
class Row(BaseModel):
    """A row of the table: names that are told together.

    Attributes:
        names: TensorFlow's names, from ``tf.`` on; none where TensorFlow has no equivalent.
        here: what they are here, by full paths.
        note: what a reader has to know, in Markdown.
        rename: which of ``here`` a name becomes in a script: the one in its place, or for all the only one.
        literals: the expressions that names become, in the names' order.
        template: the expression that a call becomes, with ``{argument}`` for the new arguments.
        templates: the same, one for each name.
        parameters: TensorFlow's parameters and their names here, in TensorFlow's order; left out, arguments stay.
        num_positional: how many arguments may be given by position; all of the parameters by default.
        order: the parameters here by position, where the order is another one: arguments are then given by name.
        defaults: expressions for arguments that a call leaves out.
        needs: arguments that a call has to give.
        drop: parameters that have no meaning here.
        numpy: in code that runs on the host: whether NumPy has the function by the same name, or which one it is.
        remove: whether a statement that only calls it is left out.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: tuple[str, ...] = Field(alias="from")
    here: tuple[str, ...]
    note: str = ""
    rename: Literal["all", "each"] | None = None
    literals: tuple[str, ...] = ()
    template: str | None = None
    templates: tuple[str, ...] = ()
    parameters: Mapping[str, str] = Field(default_factory=dict[str, str])
    num_positional: int | None = None
    order: tuple[str, ...] = ()
    defaults: Mapping[str, str] = Field(default_factory=dict[str, str])
    needs: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    numpy: bool | str = False
    remove: bool = False

    def target_of(self, name: str) -> str | None:
        """Returns what a name of this row is renamed to; None where it takes more than another name."""
        if self.rename is None:
            return None
        return self.here[self.names.index(name)] if self.rename == "each" else self.here[0]

    def template_of(self, name: str) -> str | None:
        """Returns the expression that a call of a name of this row becomes, if there is one."""
        return self.templates[self.names.index(name)] if self.templates else self.template

    def literal_of(self, name: str) -> str | None:
        """Returns the expression that a name of this row stands for, if there is one."""
        return self.literals[self.names.index(name)] if self.literals else None


@final
class Section(BaseModel):
    """A table of the page: its title, what stands before it, what its first column is called, its rows."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    section: str
    heading: str
    text: str = ""
    rows: tuple[Row, ...]

    @property
    def anchor(self) -> str:
        """The fragment of its title's link."""
        kept = "".join(c for c in self.section.lower() if c.isalnum() or c in " -_")
        return kept.replace(" ", "-")


@final
class Symbol(BaseModel):
    """A name of TensorFlow's, with its row and the link to where it is told."""

    model_config = ConfigDict(frozen=True)

    name: str
    row: Row
    link: str


@functools.cache
def load_sections() -> tuple[Section, ...]:
    """Reads the table."""
    document = yaml.safe_load(files("lockstep.migration").joinpath("symbols.yaml").read_text("utf-8"))
    return tuple(Section.model_validate(section) for section in document)


@functools.cache
def _symbols() -> Mapping[str, Symbol]:
    return {
        name: Symbol(name=name, row=row, link=f"{PAGE}#{section.anchor}")
        for section in load_sections()
        for row in section.rows
        for name in row.names
    }


def find_symbol(name: str) -> Symbol | None:
    """Returns the symbol that a full name is, or is below: of ``tf.keras.layers.Dense`` it is ``tf.keras``."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        symbol = _symbols().get(".".join(parts[:length]))
        if symbol is not None:
            return symbol
    return None


def documented_tables() -> str:
    """Returns the tables as Markdown: what stands in the page under "The table of symbols"."""
    return "\n".join(line for section in load_sections() for line in _lines_of(section))


def _lines_of(section: Section) -> Iterator[str]:
    yield f"### {section.section}"
    yield ""
    if section.text:
        yield section.text
        yield ""
    heading = section.heading if section.heading == "TensorFlow" else f"`{section.heading}`"
    yield f"| {heading} | replacement | notes |"
    yield "|---|---|---|"
    for row in section.rows:
        yield f"| {_names(row.names) or 'no equivalent'} | {_names(_distinct(row.here)) or 'None'} |{_cell(row.note)}|"
    yield ""


def _cell(text: str) -> str:
    return f" {' '.join(text.split())} " if text else " "


def _names(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _distinct(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def check_table() -> list[str]:
    """Returns what is wrong with the table: names told twice, lists of different lengths."""
    faults: list[str] = []
    seen: dict[str, Any] = {}
    for section in load_sections():
        for row in section.rows:
            for name in row.names:
                if name in seen:
                    faults.append(f"{name} is told twice")
                seen[name] = row
            for what, length in (
                ("here", len(row.here) if row.rename == "each" else 0),
                ("templates", len(row.templates)),
                ("literals", len(row.literals)),
            ):
                if length and length != len(row.names):
                    faults.append(f"{what} of {row.names[0]}: {length} for {len(row.names)} names")
            if row.rename == "all" and len(row.here) != 1:
                faults.append(f"{row.names[0]} can become any of {len(row.here)} names")
    return faults


def with_tables(page: str) -> str:
    """Returns the page with its tables written anew: they are all that stands under the first of their titles."""
    first = f"### {load_sections()[0].section}\n"
    text, _, _ = page.partition(first)
    return text + documented_tables().rstrip() + "\n"
