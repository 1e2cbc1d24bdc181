"""The exception tree: one line a message, an exit code a class."""

from __future__ import annotations

from collections.abc import Iterator

from lockstep import errors
from lockstep.errors import ConfigError, LockstepError


def _tree(root: type[LockstepError]) -> Iterator[type[LockstepError]]:
    yield root
    for child in root.__subclasses__():
        yield from _tree(child)


def test_every_class_has_an_exit_code_of_its_own() -> None:
    classes = [kind for kind in _tree(LockstepError) if kind.__module__ == errors.__name__]
    codes = [kind.exit_code for kind in classes]
    assert len(classes) > 10
    assert len(set(codes)) == len(codes)
    assert not {0, 1, 2} & set(codes), "0, 1 and 2 mean success, no, and wrong usage"


def test_a_message_says_what_received_allowed_and_action_in_one_line() -> None:
    error = ConfigError("a.b: unknown\nkey", received="c", allowed=["d", "e"], action=errors.closest("c", ["cc"]))
    assert str(error) == "a.b: unknown key; received 'c'; allowed: d, e; did you mean 'cc'?"


def test_a_long_value_is_shortened() -> None:
    assert len(str(ConfigError("x", received="y" * 10_000))) < 300


def test_a_value_that_is_nested_too_deeply_for_python_is_named_without_its_inner_parts() -> None:
    nested: object = 1
    for _ in range(100_000):
        nested = {"x": nested}
    message = str(ConfigError("x", received=nested))
    assert message.startswith("x; received {'x': {'x': ")
    assert len(message) < 300
