"""The table of TensorFlow's names: the replacement of each name, and how code that uses it is rewritten.

The table is in `symbols.yaml`. `lockstep migrate` rewrites scripts by it, and `documented_tables` generates the tables
of `docs/migrating.md` from it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any, Final, Literal, final

import yaml
from pydantic import BaseModel, ConfigDict, Field

PAGE: Final = "docs/migrating.md"
"""The page that contains the table."""


@final
class Row(BaseModel):
    """A row of the table: one or more names of TensorFlow that are documented together.

    Attributes:
        names: TensorFlow's names, beginning with ``tf.``; empty if TensorFlow has no equivalent.
        here: the replacements, as full dotted paths.
        note: a note for readers, in Markdown.
        rename: how names are replaced in scripts: "each" by the entry of ``here`` at the same position, "all" by the
            only entry; None if names are not simply renamed.
        literals: the expressions that replace the names, in the order of ``names``.
        template: the expression that replaces a call, with ``{argument}`` as the placeholder of a new argument.
        templates: the same, with one template for each name.
        parameters: the new names of TensorFlow's parameters, in TensorFlow's order; if empty, arguments stay unchanged.
        num_positional: the number of arguments that may be positional; by default all of ``parameters``.
        order: the new parameters by position, if their order is different; arguments in another position are then
            passed by name.
        defaults: the expressions for arguments that a call does not have.
        needs: the new names of arguments that a call must have.
        drop: the parameters that are removed, because they have no meaning in Lockstep or Keras 3.
        numpy: for code that runs on the host: whether NumPy has a function of the same name, or the full name of one.
        remove: whether to remove a statement that only calls the name.
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
        """Returns the new name for a name of this row; None if it is not simply renamed."""
        if self.rename is None:
            return None
        return self.here[self.names.index(name)] if self.rename == "each" else self.here[0]

    def template_of(self, name: str) -> str | None:
        """Returns the template that replaces a call of a name of this row; None if there is none."""
        return self.templates[self.names.index(name)] if self.templates else self.template

    def literal_of(self, name: str) -> str | None:
        """Returns the expression that replaces a name of this row; None if there is none."""
        return self.literals[self.names.index(name)] if self.literals else None


@final
class Section(BaseModel):
    """A table of the page.

    Attributes:
        section: the title of the table's section.
        heading: the heading of the first column.
        text: the text before the table.
        rows: the rows of the table.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    section: str
    heading: str
    text: str = ""
    rows: tuple[Row, ...]

    @property
    def anchor(self) -> str:
        """The anchor of the section in links."""
        kept = "".join(c for c in self.section.lower() if c.isalnum() or c in " -_")
        return kept.replace(" ", "-")


@final
class Symbol(BaseModel):
    """A name of TensorFlow, with its row in the table and the link to its section of the page."""

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
    """Returns the symbol for a full name or its longest known prefix: ``tf.keras`` for ``tf.keras.layers.Dense``."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        symbol = _symbols().get(".".join(parts[:length]))
        if symbol is not None:
            return symbol
    return None


def documented_tables() -> str:
    """Returns the tables as Markdown, for the section "The table of symbols" of the page."""
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
    """Returns the errors in the table: duplicate names, and lists of different lengths."""
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
    """Returns the page with its tables updated: everything from the title of the first table on is replaced."""
    first = f"### {load_sections()[0].section}\n"
    text, _, _ = page.partition(first)
    return text + documented_tables().rstrip() + "\n"
