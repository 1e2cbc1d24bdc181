"""``lockstep bucket ls``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Final

import typer

from lockstep.cli.answers import Answer, Column, answers
from lockstep.cli.bucket.objects import FoundObject, find_below, find_objects, is_folder
from lockstep.cli.console import OUTPUT, local_time, size
from lockstep.errors import counted
from lockstep.storage import StoredObject, has_wildcard, join_url, open_bucket


@answers("ObjectListForm", is_list=True)
def ls(
    urls: Annotated[list[str], typer.Argument(metavar="URL", help="Buckets, folders, objects, or patterns.")],
    long_form: Annotated[bool, typer.Option("--long", "-l", help="Show sizes and times.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Include everything in folders.")] = False,
) -> Answer:
    """List the objects and folders in buckets and folders."""
    found: dict[str, StoredObject | None] = {}
    for url in urls:
        found.update(_list(url, recursive=recursive))
    rows = list(found.items())
    return Answer(
        show=lambda: _show(rows, long_form=long_form),
        document={"objects": [{column.name: column.value_of(row) for column in COLUMNS} for row in rows]},
        rows=rows,
        columns=COLUMNS,
    )


def _show(rows: Sequence[tuple[str, StoredObject | None]], *, long_form: bool) -> None:
    if not long_form:
        for url, _ in rows:
            OUTPUT.print(url)
        return
    from rich.table import Table  # here, because the help needs none

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for url, item in rows:
        if item is None:
            table.add_row("", "", url)
        else:
            table.add_row(size(item.size_bytes), local_time(item.modified_time_s), url)
    objects = [item for _, item in rows if item is not None]
    OUTPUT.print(table)
    OUTPUT.print(f"{counted(len(objects), 'object')}, {size(sum(item.size_bytes for item in objects))}")


def _size_bytes(row: tuple[str, StoredObject | None]) -> int | None:
    return None if row[1] is None else row[1].size_bytes


def _update_time(row: tuple[str, StoredObject | None]) -> str | None:
    item = row[1]
    return None if item is None else datetime.fromtimestamp(item.modified_time_s, tz=UTC).isoformat()


COLUMNS: Final = (
    Column(name="url", value=lambda row: row[0]),
    Column(name="sizeBytes", value=_size_bytes),
    Column(name="updateTime", value=_update_time),
)
"""The columns of an object or a folder; a folder has only a URL."""


def _list(url: str, *, recursive: bool) -> dict[str, StoredObject | None]:
    if recursive:
        return _by_url(find_below(url))
    if has_wildcard(url) or not is_folder(url):
        return _by_url(find_objects(url))
    entries: dict[str, StoredObject | None] = {}
    for item in open_bucket(url).list():
        name, separator, _ = item.key.partition("/")
        if separator:
            entries[f"{join_url(url, name)}/"] = None
        else:
            entries[join_url(url, name)] = item
    return entries


def _by_url(found: list[FoundObject]) -> dict[str, StoredObject | None]:
    return {one.url: one.item for one in found}
