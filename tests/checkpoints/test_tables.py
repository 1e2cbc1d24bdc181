"""Rows of tables beside a checkpoint: what was written comes back, what was damaged is said, what nobody names goes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from etils import epath
from gcsfs.core import GCSFileSystem
from tests.storage.servers import environment, gs_server

from lockstep.checkpoints.tables import (
    RowsWriter,
    SavedTable,
    StoredTable,
    matching_slots,
    remove_unnamed,
)
from lockstep.errors import CorruptDataError
from lockstep.strategies.table_rows import Rows, RowValues

NUM_ROWS = 50


def some_rows(ids: list[int], *, num_pushes: int = 3) -> Rows:
    random = np.random.default_rng(ids)
    values, momentum = random.standard_normal((2, len(ids), 4)).astype(np.float32)
    return Rows(ids=np.array(ids, np.int64), values=values, state={"momentum": momentum}, num_pushes=num_pushes)


def write(folder: epath.Path, *batches: Rows, name: str = "1-a", part_bytes: int = 1 << 20) -> StoredTable:
    writer = RowsWriter(folder, name=name, part_bytes=part_bytes)
    for rows in batches:
        writer.add("users", rows)
    parts, num_pushes = writer.finish()["users"]
    saved = SavedTable(
        name="users",
        group="trainable",
        number=0,
        num_rows=NUM_ROWS,
        num_columns=4,
        first_values=RowValues(seed=2),
        widths={"momentum": 4},
        num_pushes=num_pushes,
        parts=parts,
    )
    assert SavedTable.from_json(saved.to_json()) == saved
    return StoredTable(saved=saved, folder=folder)


@pytest.fixture(params=["local", pytest.param("gs", marks=pytest.mark.heavy)])
def folder(request: Any, tmp_path: Path) -> Iterator[epath.Path]:
    if request.param == "local":
        yield epath.Path(tmp_path / "tables")
        return
    with gs_server() as variables, environment(variables):
        GCSFileSystem(use_listings_cache=False).mkdir("bucket-of-tests")
        yield epath.Path("gs://bucket-of-tests/run/tables")


@pytest.mark.parametrize(("part_bytes", "num_parts"), [(1, 3), (1 << 20, 1)])
@pytest.mark.filterwarnings("ignore:Sending a large body directly:ResourceWarning")  # gcsfs does
def test_rows_come_back(folder: epath.Path, part_bytes: int, num_parts: int) -> None:
    batches = [some_rows([1, 5, 7]), some_rows([2]), some_rows([], num_pushes=4), some_rows([3, 4, 9])]
    table = write(folder, *batches, part_bytes=part_bytes)
    assert len(table.saved.parts) == num_parts
    values, state = table.whole(["momentum"])
    expected = RowValues(seed=2).of(np.arange(NUM_ROWS), num_columns=4, dtype=np.dtype(np.float32))
    moments = np.zeros_like(expected)
    for rows in batches:
        expected[rows.ids], moments[rows.ids] = rows.values, rows.state["momentum"]
    np.testing.assert_array_equal(values, expected)
    np.testing.assert_array_equal(state["momentum"], moments)
    assert {rows.num_pushes for rows in table.rows()} == {4}

    other = write(folder, some_rows([8]), name="2-b")
    remove_unnamed(folder, tables=[other.saved])
    assert [path.name for path in folder.iterdir()] == ["2-b"]
    with pytest.raises(CorruptDataError, match="rows of a checkpoint, cannot be read"):
        list(table.rows())


def test_what_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    folder = epath.Path(tmp_path / "tables")
    writer = RowsWriter(folder, name="1-a", part_bytes=1)
    writer.discard()
    writer.add("users", some_rows([1]))
    assert list(folder.glob("1-a/*"))
    writer.discard()
    assert not list(folder.iterdir())


def test_rows_that_were_damaged_are_refused(tmp_path: Path) -> None:
    table = write(epath.Path(tmp_path), some_rows([1, 2]))
    part = next(tmp_path.glob("1-a/*.rows"))
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptDataError, match="has changed since it was written"):
        list(table.rows())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"parts": [{"path": "../../x.rows", "size_bytes": 1, "sha256": ""}]}, "should match", id="path"),
        pytest.param({"num_rows": -1}, "greater than or equal to 0", id="number"),
        pytest.param({"first_values": {"draw": "odd"}}, "Input should be", id="draw"),
    ],
)
def test_what_is_no_table_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    document = write(epath.Path(tmp_path), some_rows([1])).saved.to_json()
    with pytest.raises(CorruptDataError, match=f"a checkpoint's table; received .*{message}"):
        SavedTable.from_json({**document, **change})


def test_slots_that_rows_have_as_well_are_found() -> None:
    paths = {
        0: "adam/iteration",
        2: "adam/model_users_embeddings_momentum",
        3: "adam/model_users_embeddings_velocity",
        4: "adam/model_users_embeddings_2_momentum",
    }
    widths = {"momentum": 4, "velocity": 1}
    assert matching_slots(paths, variable="model/users/embeddings", widths=widths, num_columns=4) == {2: "momentum"}
