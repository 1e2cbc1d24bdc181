"""Stages a user's code for a job: packs a folder, and uploads it and other packages once per content."""

from __future__ import annotations

import gzip
import importlib.util
import io
import os
import tarfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from lockstep.client.wording import size
from lockstep.errors import InvalidInputError, MissingInputError, counted
from lockstep.home import Home
from lockstep.jobs.running.packages import check_package, package_digest
from lockstep.storage import join_url, write_once
from lockstep.submission.ignore_files import IgnoreFiles
from lockstep.submission.naming import Naming
from lockstep.submission.urls import absolute_url

MAX_BYTES: Final = 100 * 1024 * 1024
NUM_LARGEST: Final = 3
SKIPPED: Final = frozenset({"__pycache__"})
"""Names of folders that are never packed, whatever the ignore files say. Names that begin with a dot, virtual
environments, and Lockstep homes (which contain tokens) are never packed either."""


@final
@dataclass(frozen=True, kw_only=True)
class PackedFolder:
    """A folder, packed as an archive.

    Attributes:
        name: the folder's name.
        data: the bytes of a ``.tar.gz`` with one folder. They depend only on the names, contents and executable bits of
            the files.
        num_files: the number of files.
        size_bytes: the total size of the files before compression.
    """

    name: str
    data: bytes
    num_files: int
    size_bytes: int

    def describe(self) -> str:
        """Returns a description, such as "my_job: 12 files, 34.5 KiB"."""
        return f"{self.name}: {counted(self.num_files, 'file')}, {size(self.size_bytes)}"


def pack_folder(folder: Path, *, added: Mapping[str, bytes] | None = None, what: str) -> PackedFolder:
    """Packs a folder, without the files that its ignore files exclude.

    Args:
        folder: the folder.
        added: the contents of further files, by name; they are packed at the top of the folder.
        what: the flag or argument that the folder was given with, for error messages.

    Raises:
        MissingInputError: the folder does not exist, or something in it cannot be read.
        InvalidInputError: the files are larger than `MAX_BYTES`, or there are none, or the folder has a file with the
            name of an added one.
        ConfigError: a pattern of an ignore file is not valid.
    """
    folder = folder.resolve()
    files = included_files(folder, what=what)
    taken = sorted(name for name in added or {} if (folder / name).exists())
    if taken:
        raise InvalidInputError(f"{what}: {folder} has a file {taken[0]} already", action="give the file another name")
    try:
        return _archive(folder.name, _contents(folder, files, added=added or {}))
    except OSError as error:
        raise _unreadable(error, folder, what=what) from None


def pack_files(name: str, files: Mapping[str, bytes]) -> PackedFolder:
    """Packs files that lie in no folder of this machine.

    Args:
        name: the name of the packed folder.
        files: the contents of the files, by their names in the folder.
    """
    return _archive(name, [(path, files[path], 0o644) for path in sorted(files)])


def packed_files(folder: Path, *, what: str) -> frozenset[Path]:
    """Returns the resolved paths of the files that `pack_folder` would pack.

    Args:
        folder: the folder.
        what: the flag or argument that the folder was given with, for error messages.

    Raises:
        MissingInputError: the folder does not exist, or something in it cannot be read.
        InvalidInputError: the files are larger than `MAX_BYTES`, or there are none.
        ConfigError: a pattern of an ignore file is not valid.
    """
    return frozenset(path.resolve() for path in included_files(folder.resolve(), what=what))


def included_files(folder: Path, *, what: str) -> list[Path]:
    """Returns the files of a folder that its ignore files do not exclude, in sorted order.

    Args:
        folder: the folder, as an absolute path.
        what: the flag or argument that the folder was given with, for error messages.

    Raises:
        MissingInputError: the folder does not exist, or something in it cannot be read.
        InvalidInputError: the files are larger than `MAX_BYTES`, or there are none.
        ConfigError: a pattern of an ignore file is not valid.
    """
    if not folder.is_dir():
        raise MissingInputError(f"{what}: no folder {folder}", action="name the folder that holds the module")
    try:
        return _files(folder, what=what)
    except OSError as error:
        raise _unreadable(error, folder, what=what) from None


def _unreadable(error: OSError, folder: Path, *, what: str) -> MissingInputError:
    return MissingInputError(f"{what}: {error.filename or folder} cannot be read: {error.strerror}")


def _files(folder: Path, *, what: str) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    ignored = IgnoreFiles(folder)

    def keeps(path: Path, *, is_folder: bool) -> bool:
        return not _is_left_out(path) and not ignored.excludes(path, is_folder=is_folder)

    files: list[Path] = []
    for top, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if keeps(Path(top, name), is_folder=True)]
        files += [path for name in names if keeps(path := Path(top, name), is_folder=False) and path.is_file()]
    if not files:
        raise InvalidInputError(f"{what}: {folder} is empty, or all its files are excluded")
    _check_size(folder, files, what=what)
    return sorted(files)


def _check_size(folder: Path, files: Sequence[Path], *, what: str) -> None:
    entries: Counter[str] = Counter()
    for path in files:
        entries[path.relative_to(folder).parts[0]] += path.stat().st_size
    if entries.total() > MAX_BYTES:
        largest = ", ".join(f"{name} ({size(num_bytes)})" for name, num_bytes in entries.most_common(NUM_LARGEST))
        raise InvalidInputError(
            f"{what}: {folder} holds {size(entries.total())} in {counted(len(files), 'file')}, most in {largest}",
            allowed=f"at most {size(MAX_BYTES)}",
            action="keep data in a bucket, not beside the code, or exclude it in .lockstepignore",
        )


def _is_left_out(path: Path) -> bool:
    if path.name in SKIPPED or path.name.startswith("."):
        return True
    home = Home(path=path)
    is_home = path.resolve() == Home.from_env().path.resolve() or (home.token.exists() and home.database.exists())
    return is_home or (path / "pyvenv.cfg").exists()


def _contents(folder: Path, files: Sequence[Path], *, added: Mapping[str, bytes]) -> Iterator[tuple[str, bytes, int]]:
    """Yields the name of each file in the packed folder, its content, and its mode; in sorted order of the names."""
    for path in sorted([*files, *(folder / name for name in added)]):
        name = path.relative_to(folder).as_posix()
        if name in added:
            yield name, added[name], 0o644
        else:
            # As a whole, so that the entry's size is right even if the file is being written.
            yield name, path.read_bytes(), 0o755 if path.stat().st_mode & 0o100 else 0o644


def _archive(name: str, files: Iterable[tuple[str, bytes, int]]) -> PackedFolder:
    buffer = io.BytesIO()
    num_files = size_bytes = 0
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path, data, mode in files:
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size, entry.mode = len(data), mode
            archive.addfile(entry, io.BytesIO(data))
            num_files, size_bytes = num_files + 1, size_bytes + len(data)
    return PackedFolder(name=name, data=buffer.getvalue(), num_files=num_files, size_bytes=size_bytes)


def check_module(folder: Path, *, module: str, naming: Naming) -> None:
    """Checks that a folder contains a module, before a job is submitted with it.

    Both ``train`` and ``folder.train`` name ``folder/train.py``.

    Args:
        folder: the folder.
        module: the module's name.
        naming: how the submitter knows the parameters.

    Raises:
        MissingInputError: the folder does not contain the module.
    """
    parts = module.split(".")
    for base in (folder.resolve(), folder.resolve().parent):
        path = base.joinpath(*parts)
        if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file():
            return
    raise MissingInputError(
        f"{naming('module_name')}: no module {module!r} in {folder}",
        allowed=", ".join(sorted(path.stem for path in folder.glob("*.py"))) or f"a module of {naming('package_path')}",
    )


def check_installed(module: str, *, naming: Naming) -> None:
    """Checks that a module is installed, for a job without packages.

    Args:
        module: the module's name.
        naming: how the submitter knows the parameters.

    Raises:
        MissingInputError: the module is not installed.
    """
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise MissingInputError(
            f"{naming('module_name')}: no module {module!r} is installed",
            action=f"name its folder with {naming('package_path')}",
        )


def stage_folder(
    folder: Path,
    *,
    added: Mapping[str, bytes] | None = None,
    staging: str,
    upload: bool = True,
    what: str = "package_path",
    say: Callable[[str], object] = lambda _: None,
) -> str:
    """Packs a folder, uploads it unless the bucket has the same content already, and returns its URL.

    Args:
        folder: the folder.
        added: the contents of further files, by name; they are packed at the top of the folder.
        staging: the URL of the staging bucket.
        upload: whether to upload; False only computes the URL.
        what: the flag or argument that the folder was given with, for error messages.
        say: a function that prints a line about the packed folder.

    Raises:
        StorageWriteError: the bucket cannot be written.
    """
    return stage_packed(pack_folder(folder, added=added, what=what), staging=staging, upload=upload, say=say)


def stage_packed(
    packed: PackedFolder, *, staging: str, upload: bool = True, say: Callable[[str], object] = lambda _: None
) -> str:
    """Uploads a packed folder, unless the bucket has the same content already, and returns its URL.

    Args:
        packed: the packed folder.
        staging: the URL of the staging bucket.
        upload: whether to upload; False only computes the URL.
        say: a function that prints a line about the packed folder.

    Raises:
        StorageWriteError: the bucket cannot be written.
    """
    url = join_url(staging, "packages", f"{packed.name}-{package_digest(packed.data)}.tar.gz")
    is_there = upload and not write_once(url, data=packed.data)
    say(f"packed {packed.describe()}{'; the bucket has it already' if is_there else ''}")
    return url


def stage_package(name: str, *, staging: str, upload: bool = True, what: str = "packages") -> str:
    """Uploads a package beside the program's folder, unless the bucket has the same content already.

    Args:
        name: a local file, or the URL of an object, which is used as it is.
        staging: the URL of the staging bucket.
        upload: whether to upload; False only computes the URL.
        what: the flag or argument that the package was given with, for error messages.

    Returns:
        The package's URL, in which a local file keeps its name.

    Raises:
        MissingInputError: the file cannot be read.
        InvalidInputError: the file is not a package that a job can import.
        StorageWriteError: the bucket cannot be written.
    """
    if "://" in name:
        return absolute_url(name, what=what)
    path = Path(name)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise MissingInputError(f"{what}: {path} cannot be read: {error.strerror}") from None
    check_package(path.name, data=data)
    url = join_url(staging, "packages", package_digest(data), path.name)
    if upload:
        write_once(url, data=data)
    return url
