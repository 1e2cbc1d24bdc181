"""Finds scripts, rewrites them, and replaces their files atomically."""

from __future__ import annotations

import difflib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lockstep.errors import InvalidInputError, MissingInputError, StorageError, StorageWriteError
from lockstep.migration.remarks import Remark
from lockstep.migration.rewriting import rewrite

_SKIPPED_FOLDERS: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


@final
@dataclass(frozen=True, kw_only=True)
class Migrated:
    """The result of migrating a file.

    Attributes:
        path: the path of the file.
        before: the original text.
        after: the rewritten text.
        encoding: the encoding of the file.
        remarks: the remarks about code that a person has to change.
    """

    path: Path
    before: str
    after: str
    encoding: str
    remarks: tuple[Remark, ...]

    @property
    def is_changed(self) -> bool:
        """Whether the rewritten text differs from the original."""
        return self.before != self.after

    def diff(self) -> str:
        """Returns the change as a unified diff; "" if there is none.

        The diff can be applied in the current folder with ``git apply`` or ``patch -p1``.
        """
        path = os.path.relpath(self.path)
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), fromfile=f"a/{path}", tofile=f"b/{path}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Replaces the file atomically with the rewritten text, and keeps its permissions.

        Raises:
            StorageWriteError: the file cannot be written.
        """
        target = self.path.resolve()  # the target of a symbolic link
        try:
            with tempfile.NamedTemporaryFile(
                dir=target.parent, prefix=f".{target.name}.", suffix=".tmp", delete=False
            ) as file:
                temporary = Path(file.name)
                try:
                    file.write(self.after.encode(self.encoding))
                    file.flush()
                    os.fsync(file.fileno())
                    shutil.copymode(target, temporary)
                    os.replace(temporary, target)
                except BaseException:
                    temporary.unlink(missing_ok=True)
                    raise
        except OSError as error:
            raise StorageWriteError(f"{self.path} cannot be written: {error.strerror or error}") from error


def find_scripts(path: Path) -> Iterator[Path]:
    """Yields a script, or all scripts in and below a folder in sorted order, except hidden folders and environments.

    Raises:
        MissingInputError: the path does not exist, or is a folder without scripts.
        InvalidInputError: the path is a notebook.
    """
    if path.is_dir():
        found = False
        for folder, names, files in os.walk(path):
            names[:] = sorted(name for name in names if not _is_skipped(Path(folder, name)))
            for name in sorted(files):
                if name.endswith(".py") and not Path(folder, name).is_symlink():
                    found = True
                    yield Path(folder, name)
        if not found:
            raise MissingInputError("the folder has no Python scripts", received=f"{path}")
    elif not path.exists():
        raise MissingInputError("the script or folder does not exist", received=f"{path}")
    elif path.suffix == ".ipynb":
        raise InvalidInputError(
            "a notebook is not a script", received=f"{path}", action=f"jupyter nbconvert --to script {path}"
        )
    else:
        yield path


def migrate_file(path: Path, *, keep_tf_data: bool = False) -> Migrated:
    """Rewrites a script, without changing its file.

    Args:
        path: the path of the script.
        keep_tf_data: whether to leave input pipelines of ``tf.data`` unchanged.

    Raises:
        InvalidInputError: the file cannot be parsed as Python.
        StorageError: the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror or error}") from error
    rewritten = rewrite(data, name=f"{path}", keep_tf_data=keep_tf_data)
    return Migrated(
        path=path,
        before=data.decode(rewritten.encoding),
        after=rewritten.source,
        encoding=rewritten.encoding,
        remarks=rewritten.remarks,
    )


def _lines(text: str) -> list[str]:
    """Splits a text into lines as `patch` does: a form feed or a line separator of Unicode does not end a line."""
    return list(io.StringIO(text, newline="\n"))


def _is_skipped(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS or (folder / "pyvenv.cfg").exists()
