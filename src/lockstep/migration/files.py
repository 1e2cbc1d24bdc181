"""Scripts in files: found, rewritten, written back whole or not at all."""

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

_PASSED_OVER: Final = frozenset({"__pycache__", "node_modules", "site-packages"})


@final
@dataclass(frozen=True, kw_only=True)
class Migrated:
    """What became of a file.

    Attributes:
        path: the file.
        before: what it has, or had.
        after: what it is to have.
        encoding: how its text is written.
        remarks: what is left to a person.
    """

    path: Path
    before: str
    after: str
    encoding: str
    remarks: tuple[Remark, ...]

    @property
    def is_changed(self) -> bool:
        """Whether there is anything to write."""
        return self.before != self.after

    def diff(self) -> str:
        """Returns the change as a unified diff, "" where there is none.

        ``git apply`` and ``patch -p1`` take it in the current folder.
        """
        path = os.path.relpath(self.path)
        lines = difflib.unified_diff(_lines(self.before), _lines(self.after), fromfile=f"a/{path}", tofile=f"b/{path}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)

    def write(self) -> None:
        """Writes the file anew, with its permissions: it is the old one or the new one at any time.

        Raises:
            StorageWriteError: it cannot be written.
        """
        target = self.path.resolve()  # of a link, what it leads to
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
    """Yields a script, or those in a folder and below it, in their order; hidden folders and environments left out.

    Raises:
        MissingInputError: nothing is there, or a folder without scripts.
        InvalidInputError: it is a file of another kind.
    """
    if path.is_dir():
        found = False
        for folder, names, files in os.walk(path):
            names[:] = sorted(name for name in names if not _is_passed_over(Path(folder, name)))
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
    """Rewrites a script; nothing is written.

    Args:
        path: the file.
        keep_tf_data: whether input pipelines of ``tf.data`` stay as they are.

    Raises:
        InvalidInputError: it is no Python that can be parsed.
        StorageError: it cannot be read.
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
    """Returns lines as `patch` counts them: a form feed, or another separator of Unicode's, ends none."""
    return list(io.StringIO(text, newline="\n"))


def _is_passed_over(folder: Path) -> bool:
    return folder.name.startswith(".") or folder.name in _PASSED_OVER or (folder / "pyvenv.cfg").exists()
