"""The migration guide: each symbol of tf.distribute has a row, each name that it gives exists, and its scripts run."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import lockstep
from lockstep import migration
from lockstep.migration.symbols import load_sections, with_tables
from lockstep.strategies import AbstractStrategy, ReplicaContext

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "migrating.md"
# All public names below `tf.distribute` of TensorFlow 2.21, as `dir` lists them: classes with their own members, those
# of a base class and those of an old name of a class left out.
SYMBOLS = Path(__file__).with_name("tf_distribute_symbols.txt")
NAME = re.compile(r"`([^`]+)`")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _rows() -> list[list[str]]:
    """Returns the cells of all rows of the tables of symbols."""
    _, _, tables = PAGE.read_text("utf-8").partition("## The table of symbols")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in tables.splitlines() if line[:1] == "|"]
    return [row for row in rows if not set(row[0]) <= set("-") and row[1] != "replacement"]


def _find(path: str) -> Any:
    """Returns what a full name stands for; fails where there is no such thing."""
    first, *rest = path.split(".")
    found: Any = {"strategy": AbstractStrategy, "replica": ReplicaContext}.get(first)
    if found is None:
        found = importlib.import_module(first)
    for position, name in enumerate(rest):
        if hasattr(found, name):
            found = getattr(found, name)
        elif name in getattr(found, "__dataclass_fields__", ()):
            assert position == len(rest) - 1, path
        else:
            found = importlib.import_module(".".join([first, *rest[: position + 1]]))
    return found


def test_the_table_has_every_symbol_once() -> None:
    told = [name for row in _rows() for name in NAME.findall(row[0]) if name.startswith("tf.distribute.")]
    assert sorted(told) == sorted(SYMBOLS.read_text("utf-8").split())


def test_every_name_in_the_middle_column_exists() -> None:
    rows = _rows()
    assert len(rows) > 80
    for row in rows:
        assert len(row) == 3, row
        names = NAME.findall(row[1])
        assert names or row[1] == "None", row
        for name in names:
            _find(name)


def test_the_page_has_the_table_that_scripts_are_migrated_by() -> None:
    page = PAGE.read_text("utf-8")
    assert page == with_tables(page), "run `make docs`"


def test_every_link_that_a_migration_gives_leads_to_a_part_of_the_page() -> None:
    titles = re.findall(r"^#+ (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    anchors = {re.sub(r"[^a-z0-9 _-]", "", title.lower()).replace(" ", "-") for title in titles}
    sources = "".join(path.read_text("utf-8") for path in Path(migration.__file__).parent.glob("*.py"))
    named = set(re.findall(r"(?:migrating\.md|\{PAGE\})#([a-z0-9-]+)", sources))
    assert len(named) > 5
    assert named | {section.anchor for section in load_sections()} <= anchors


def test_a_name_that_does_not_exist_would_be_noticed() -> None:
    for wrong in ("lockstep.strategies.MirorredStrategy", "strategy.experimental_run", "lockstep.nothing", "nothing"):
        with pytest.raises((AttributeError, ImportError)):
            _find(wrong)


ROOMS_OF_JOBS = ("client", "submission")
"""The rooms whose names submit and watch jobs, which ``tf.distribute`` has no names for."""


def test_what_lockstep_exports_for_training_is_found_in_the_guide() -> None:
    page = PAGE.read_text("utf-8")
    missing = [
        name
        for name in lockstep.__all__
        if callable(exported := getattr(lockstep, name))
        and exported.__module__.split(".")[1] not in ROOMS_OF_JOBS
        and f"lockstep.{name}" not in page
    ]
    assert missing == []


def _scripts(page: Path) -> Iterator[str]:
    return (text for text in BLOCK.findall(page.read_text("utf-8")) if "import tensorflow" not in text)


@pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")  # of Keras's variables
@pytest.mark.parametrize(("page", "num_scripts"), [("migrating.md", 2), ("strategies/custom_loops.md", 5)])
def test_the_scripts_of_a_page_run(
    page: str, num_scripts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)  # one of them saves its model
    scripts = list(_scripts(DOCS / page))
    assert len(scripts) == num_scripts
    names: dict[str, Any] = {}
    for script in scripts:
        exec(compile(script, page, "exec"), names)
    assert 0 < float(names["loss"]) < 10
    assert "nan" not in capsys.readouterr().out
