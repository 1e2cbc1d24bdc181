"""Defines what the filters of jobs and of log entries share: the predicate, and parsing a text into one.

A predicate is a program in postfix order.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar, cast, final

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedInput

from lockstep.errors import InvalidInputError

MAX_FILTER_LENGTH: Final = 2000

Item = TypeVar("Item")


@final
@dataclass(frozen=True, kw_only=True)
class Join:
    """Replaces the last `count` results by one: whether all are true, whether any is, or the opposite of a single one.

    Attributes:
        kind: "all", "any" or "not".
        count: the number of results to replace.
    """

    kind: str
    count: int


Program = list[Any]
"""Tests (or, during parsing, tokens that become tests) and joins, in postfix order."""


@final
@dataclass(frozen=True, kw_only=True)
class Predicate(Generic[Item]):
    """A parsed filter: call it with an item.

    Attributes:
        text: the filter's text.
        program: the filter in postfix order, so that evaluating deeply nested filters needs no recursion.
    """

    text: str
    program: tuple[Callable[[Item], bool] | Join, ...]

    def __call__(self, item: Item) -> bool:
        """Returns whether the filter matches the item."""
        results: list[bool] = []
        for step in self.program:
            if not isinstance(step, Join):
                results.append(step(item))
                continue
            last = results[-step.count :]
            del results[-step.count :]
            results.append(not last[0] if step.kind == "not" else all(last) if step.kind == "all" else any(last))
        return all(results)


class AbstractFilterCompiler(Transformer[Token, Program]):
    """Builds the postfix program bottom-up, while the parser reduces the grammar's rules. Methods bear their names."""

    def start(self, items: list[Program]) -> Program:
        """Returns the steps of the whole filter, which may be empty."""
        return items[0] if items else []

    def any_of(self, items: list[Program]) -> Program:
        """Returns the steps of terms joined by OR."""
        return _joined("any", items)

    def all_of(self, items: list[Program]) -> Program:
        """Returns the steps of terms joined by AND, or by nothing."""
        return _joined("all", items)

    def negation(self, items: list[Program]) -> Program:
        """Returns the steps of a term after NOT or a minus."""
        return [*items[0], Join(kind="not", count=1)]

    @abstractmethod
    def comparison(self, items: list[Any]) -> Program:
        """Returns the steps of a comparison: a field, an operator and a value. Pure.

        Raises:
            InvalidInputError: If there is no such field, or if it does not support the operator or the value.
        """


def _joined(kind: str, items: list[Program]) -> Program:
    steps = [step for item in items for step in item]
    return [*steps, Join(kind=kind, count=len(items))] if len(items) > 1 else steps


def parse_filter_text(text: str, *, parser: Lark, example: str) -> Predicate[Any]:
    """Parses a filter; an empty filter matches everything.

    Args:
        text: the filter's text.
        parser: the parser of the grammar, with an `AbstractFilterCompiler` as its transformer.
        example: an example of a comparison, for error messages.

    Raises:
        InvalidInputError: If the filter is too long or does not follow the grammar, or if its compiler rejects it.
    """
    if len(text) > MAX_FILTER_LENGTH:
        raise InvalidInputError(
            "filter is too long", received=f"{len(text)} characters", allowed=f"{MAX_FILTER_LENGTH} characters"
        )
    try:
        # According to Lark's types, this returns a tree. With a transformer in the parser, it returns what the start
        # rule's method returned. The types also leave the text's own type open, hence the ignore.
        program = cast("Program", parser.parse(text))  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as error:
        # Lark counts columns from 1, and reports -1 at the end of the text.
        at_end = error.column < 1 or getattr(getattr(error, "token", None), "type", "") == "$END"
        column = len(text) + 1 if at_end else (error.pos_in_stream or 0) + 1
        raise InvalidInputError(
            f"filter: column {column}: " + ("it is incomplete" if at_end else "not understood from here"),
            received=None if at_end else text[column - 1 :],
            allowed=f"comparisons such as {example} joined by AND, OR, NOT and parentheses",
        ) from None
    return Predicate(text=text, program=tuple(program))


def filter_error(
    token: Token, *, allowed: str | tuple[str, ...] | None, action: str | None = None
) -> InvalidInputError:
    """Builds the error of a word that is not allowed at its place in a filter."""
    return InvalidInputError(
        f"filter: column {(token.start_pos or 0) + 1}", received=str(token), allowed=allowed, action=action
    )
