"""What the filters of jobs and of log entries share: a predicate in postfix order, and how a text becomes one."""

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
    """Replaces the last `count` results by one: all of them, any of them, or (of one) its opposite."""

    kind: str
    count: int


Steps = list[Any]
"""Tests (or, while a filter is being read, what becomes one) and joins, in postfix order."""


@final
@dataclass(frozen=True, kw_only=True)
class Predicate(Generic[Item]):
    """A filter that has been read: call it with an item.

    Attributes:
        text: the filter's own text.
        program: the filter in postfix order, so that applying it needs no recursion however deep it is nested.
    """

    text: str
    program: tuple[Callable[[Item], bool] | Join, ...]

    def __call__(self, item: Item) -> bool:
        """Whether the filter holds for the item."""
        results: list[bool] = []
        for step in self.program:
            if not isinstance(step, Join):
                results.append(step(item))
                continue
            last = results[-step.count :]
            del results[-step.count :]
            results.append(not last[0] if step.kind == "not" else all(last) if step.kind == "all" else any(last))
        return all(results)


class AbstractFilterCompiler(Transformer[Token, Steps]):
    """Builds the postfix program bottom-up, while the parser reduces the rules that its methods are named for."""

    def start(self, items: list[Steps]) -> Steps:
        """The whole filter, which may be empty."""
        return items[0] if items else []

    def any_of(self, items: list[Steps]) -> Steps:
        """Terms joined by OR."""
        return _joined("any", items)

    def all_of(self, items: list[Steps]) -> Steps:
        """Terms joined by AND, or by nothing."""
        return _joined("all", items)

    def negation(self, items: list[Steps]) -> Steps:
        """A term after NOT or a minus."""
        return [*items[0], Join(kind="not", count=1)]

    @abstractmethod
    def comparison(self, items: list[Any]) -> Steps:
        """A field, an operator and a value. Pure.

        Raises:
            InvalidInputError: there is no such field, or it does not take the operator or the value.
        """


def _joined(kind: str, items: list[Steps]) -> Steps:
    steps = [step for item in items for step in item]
    return [*steps, Join(kind=kind, count=len(items))] if len(items) > 1 else steps


def read_filter(text: str, *, parser: Lark, example: str) -> Predicate[Any]:
    """Reads a filter; an empty one holds for everything.

    Args:
        text: the filter.
        parser: its grammar, with an `AbstractFilterCompiler` inside.
        example: a comparison, for those whose filter is not understood.

    Raises:
        InvalidInputError: it is too long, does not follow the grammar, or its compiler refused it.
    """
    if len(text) > MAX_FILTER_LENGTH:
        raise InvalidInputError(
            "filter is too long", received=f"{len(text)} characters", allowed=f"{MAX_FILTER_LENGTH} characters"
        )
    try:
        # Lark's types name a tree; with a transformer inside, what its start rule built comes back. They leave the
        # text's own type open, hence the ignore.
        program = cast("Steps", parser.parse(text))  # pyright: ignore[reportUnknownMemberType]
    except UnexpectedInput as error:
        # Lark counts columns from 1, and gives -1 for the end of the text.
        at_end = error.column < 1 or getattr(getattr(error, "token", None), "type", "") == "$END"
        column = len(text) + 1 if at_end else (error.pos_in_stream or 0) + 1
        raise InvalidInputError(
            f"filter: column {column}: " + ("it ends too soon" if at_end else "not understood from here"),
            received=None if at_end else text[column - 1 :],
            allowed=f"comparisons such as {example} joined by AND, OR, NOT and parentheses",
        ) from None
    return Predicate(text=text, program=tuple(program))


def refused(token: Token, *, allowed: str | tuple[str, ...] | None, action: str | None = None) -> InvalidInputError:
    """Returns the error of a word of a filter that is not allowed where it stands."""
    return InvalidInputError(
        f"filter: column {(token.start_pos or 0) + 1}", received=str(token), allowed=allowed, action=action
    )
