"""``lockstep bucket ls``."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.table import Table

from lockstep.cli.bucket.objects import FoundObject, find_below, find_objects, is_folder
from lockstep.cli.console import OUTPUT, local_time, size
from lockstep.errors import counted
from lockstep.storage import StoredObject, has_wildcard, join_url, open_bucket


def ls(
    urls: Annotated[list[str], typer.Argument(metavar="URL...", help="Buckets, folders, objects, or patterns.")],
    long_form: Annotated[bool, typer.Option("--long", "-l", help="Show sizes and times.")] = False,
    recursive: Annotated[bool, typer.Option("--recursive", "-r", help="Include everything in folders.")] = False,
) -> None:
    """List the objects and folders in buckets and folders."""
    found: dict[str, StoredObject | None] = {}
    for url in urls:
        found.update(_list(url, recursive=recursive))
    if not long_form:
        for url in found:
            OUTPUT.print(url)
        return
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for url, item in found.items():
        if item is None:
            table.add_row("", "", url)
        else:
            table.add_row(size(item.size_bytes), local_time(item.modified_time_s), url)
    objects = [item for item in found.values() if item is not None]
    OUTPUT.print(table)
    OUTPUT.print(f"{counted(len(objects), 'object')}, {size(sum(item.size_bytes for item in objects))}")


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
