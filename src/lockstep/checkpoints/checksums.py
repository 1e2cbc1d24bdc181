"""Checksums of a checkpoint's files: each process sums what it wrote, and one file of the checkpoint lists them all.

The list is written before the checkpoint appears under its number. So a checkpoint that is visible has one, and a file
that is lost, cut off or changed later is noticed.
"""

# Orbax's path type is only partly typed, so values from it are of unknown type in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUntypedBaseClass=false

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias, final

import jax
import orbax.checkpoint as ocp
from etils import epath
from orbax.checkpoint.future import ChainedFuture
from typing_extensions import override

from lockstep.checkpoints.tables import SavedPart

FILE: Final = "checksums.json"

_PARTS: Final = "checksums.process_"
_BLOCK_BYTES: Final = 2**22
_CHANGED_LATER: Final = frozenset({FILE, "commit_success.txt", "_CHECKPOINT_METADATA"})
"""Files that Orbax writes when it makes a checkpoint visible, after the list. Nothing is restored from them."""

_Expected: TypeAlias = tuple[epath.Path, str, int, str]
"""A file, its name in messages, its size in bytes and its digest."""
Sums: TypeAlias = dict[str, list[Any]]
"""The size in bytes and the SHA-256 digest in hexadecimal digits, by a file's path in its folder."""


@final
class SummingHandler(ocp.PyTreeCheckpointHandler):
    """Writes arrays as Orbax does. When a process has written its own files, it writes their checksums beside them."""

    @override
    async def async_save(self, directory: Any, item: Any = None, save_args: Any = None, args: Any = None) -> list[Any]:
        """Begins to write arrays; see Orbax's method of this name for the arguments and the result."""
        futures = await super().async_save(directory, item, save_args, args)
        return [ChainedFuture(futures or [], cb=lambda: _sum_own_files(directory))]


@final
@ocp.args.register_with_handler(SummingHandler, for_save=True)
@dataclass
class SummedSave(ocp.args.PyTreeSave):
    """What `SummingHandler` saves; its attributes are those of Orbax's class."""


@final
@ocp.args.register_with_handler(SummingHandler, for_restore=True)
@dataclass
class SummedRestore(ocp.args.PyTreeRestore):
    """Orbax requires a class of its own for each handler; `lockstep.checkpoints.arrays` reads the arrays."""


def write_list(checkpoint: epath.Path) -> None:
    """Lists the files of a checkpoint that is complete and not visible yet. Called once, by the process that leads.

    Args:
        checkpoint: the folder of the checkpoint.

    Raises:
        OSError: a file cannot be read, or the list cannot be written.
    """
    known: Sums = {}
    for part in list(checkpoint.glob(f"*/{_PARTS}*")):
        found = json.loads(part.read_text())
        known.update({f"{part.parent.name}/{name}": summed for name, summed in found.items()})
        part.unlink()
    files = {name: known.get(name) or _sum(path) for name, path in _walk(checkpoint) if path.name not in _CHANGED_LATER}
    (checkpoint / FILE).write_text(json.dumps({"files": files}))


def find_damage(
    checkpoint: epath.Path,
    *,
    tables: epath.Path,
    table_parts: list[SavedPart],
    part: int = 0,
    num_parts: int = 1,
    is_listed: bool = True,
) -> str | None:
    """Compares the files of a checkpoint with their checksums. Reads all of them, or one part of several.

    Args:
        checkpoint: the folder of the checkpoint.
        tables: the folder of parameter servers' rows.
        table_parts: the files in it to which the checkpoint refers.
        part: the part of the files to read: the processes of a job divide them.
        num_parts: the number of parts.
        is_listed: whether the checkpoint has to have a list. Those of earlier versions have none.

    Returns:
        The first damage, as a clause; None if there is none.

    Raises:
        OSError: a file is there and cannot be read.
    """
    expected = [(tables / one.path, f"tables/{one.path}", one.size_bytes, one.sha256) for one in table_parts]
    path = checkpoint / FILE
    if path.exists():
        try:
            files: Sums = json.loads(path.read_bytes())["files"]
            expected += [(checkpoint / name, name, int(size), str(digest)) for name, (size, digest) in files.items()]
        except (ValueError, TypeError, KeyError) as error:
            return f"{FILE} has changed since it was written: {error}"
    elif is_listed:
        return f"{FILE} is missing"
    for file, name, size_bytes, digest in _part_of(expected, part=part, num_parts=num_parts):
        if not file.exists():
            return f"{name} is missing"
        found_bytes, found = _sum(file)
        if found_bytes != size_bytes:
            return f"{name} has {found_bytes} bytes; {size_bytes} were written"
        if found != digest:
            return f"{name} has changed since it was written: its SHA-256 begins with {found[:8]}, not {digest[:8]}"
    return None


def _part_of(files: Sequence[_Expected], *, part: int, num_parts: int) -> list[_Expected]:
    """Returns one part of files, so that all parts are about equally large.

    The largest file first, each goes to the part that has the least until then (Graham, 1969).
    """
    parts: list[list[_Expected]] = [[] for _ in range(num_parts)]
    sizes = [0] * num_parts
    for file in sorted(files, key=lambda one: (-one[2], one[1])):
        least = sizes.index(min(sizes))
        parts[least].append(file)
        sizes[least] += file[2]
    return parts[part]


def _sum_own_files(directory: epath.Path) -> None:
    """Sums the files that this process's shards are in. The files of the index are not final yet."""
    process = jax.process_index()
    own = directory / f"ocdbt.process_{process}" / "d"
    if own.exists():
        sums = {f"{own.parent.name}/{own.name}/{name}": _sum(path) for name, path in _walk(own)}
        (directory / f"{_PARTS}{process}").write_text(json.dumps(sums))


def _walk(folder: epath.Path, prefix: str = "") -> Iterator[tuple[str, epath.Path]]:
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            yield from _walk(path, f"{prefix}{path.name}/")
        else:
            yield f"{prefix}{path.name}", path


def _sum(path: epath.Path) -> list[Any]:
    digest, size_bytes = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK_BYTES):
            digest.update(block)
            size_bytes += len(block)
    return [size_bytes, digest.hexdigest()]
