"""Which names code reads and binds."""

from __future__ import annotations

import libcst as cst
import pytest

from lockstep.migration.bindings import names_bound, names_read


@pytest.mark.parametrize(
    ("code", "read", "bound"),
    [
        ("def f(x=x): return x", {"x"}, ["f"]),
        ("f = lambda x=x: x", {"x"}, ["f"]),
        ("def f(*, x=x, y=z): return x + y", {"x", "z"}, ["f"]),
        ("def f(x, /, y=x): return x + y", {"x"}, ["f"]),
        ("def f(x, y=1): return x + y + z", {"z"}, ["f"]),
        ("x: int = y", {"y"}, ["x"]),
        ("x: int", set(), []),
    ],
)
def test_names_that_are_read_and_bound(code: str, read: set[str], bound: list[str]) -> None:
    nodes = cst.parse_module(code).body
    assert names_read(nodes) == read
    assert names_bound(nodes) == bound
