"""A user's code on its way to a job: a folder packed by its content, uploaded once."""

from __future__ import annotations

import gzip
import hashlib
import importlib.util
import io
import os
import tarfile
from pathlib import Path
from typing import Final

from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.home import Home
from lockstep.storage import join_url, open_bucket, split_url

MAX_BYTES: Final = 100 * 1024 * 1024
SKIPPED: Final = frozenset({"__pycache__"})
"""Left out, as is whatever begins with a dot, a virtual environment, and a Lockstep home, which holds tokens."""


def pack_folder(folder: Path) -> bytes:
    """Returns a folder as a ``.tar.gz`` that depends on the files' names and contents alone.

    Raises:
        MissingInputError: there is no such folder, or something in it cannot be read.
        InvalidInputError: it is larger than `MAX_BYTES`, or empty.
    """
    folder = folder.resolve()
    if not folder.is_dir():
        raise MissingInputError(f"--package-path: no folder {folder}", action="name the folder that holds the module")
    try:
        return _archive(folder, _files(folder))
    except OSError as error:
        raise MissingInputError(
            f"--package-path: {error.filename or folder} cannot be read: {error.strerror}"
        ) from None


def _files(folder: Path) -> list[Path]:
    def refuse(error: OSError) -> None:
        raise error

    files: list[Path] = []
    for top, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not _is_left_out(Path(top, name))]
        files += [path for name in names if not _is_left_out(path := Path(top, name)) and path.is_file()]
    size_bytes = sum(path.stat().st_size for path in files)
    if size_bytes > MAX_BYTES:
        raise InvalidInputError(
            f"--package-path: {folder} holds {size_bytes} bytes",
            allowed=f"at most {MAX_BYTES}",
            action="keep data in a bucket, not beside the code",
        )
    if not files:
        raise InvalidInputError(f"--package-path: {folder} holds no files")
    return sorted(files)


def _is_left_out(path: Path) -> bool:
    if path.name in SKIPPED or path.name.startswith("."):
        return True
    home = Home(path=path)
    is_home = path.resolve() == Home.from_env().path.resolve() or (home.token.exists() and home.database.exists())
    return is_home or (path / "pyvenv.cfg").exists()


def _archive(folder: Path, files: list[Path]) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        for path in files:
            data = path.read_bytes()  # at once: a file that is written meanwhile has the size that was read
            entry = tarfile.TarInfo(f"{folder.name}/{path.relative_to(folder).as_posix()}")
            entry.size = len(data)
            entry.mode = 0o755 if path.stat().st_mode & 0o100 else 0o644
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def check_module(folder: Path, *, module: str) -> None:
    """Refuses a module that the folder does not hold, before a job is made of it.

    Both ``train`` and ``folder.train`` name ``folder/train.py``.

    Raises:
        MissingInputError: there is no such module.
    """
    parts = module.split(".")
    for base in (folder.resolve(), folder.resolve().parent):
        path = base.joinpath(*parts)
        if path.with_suffix(".py").is_file() or (path / "__main__.py").is_file():
            return
    raise MissingInputError(
        f"--module-name: no module {module!r} in {folder}",
        allowed=", ".join(sorted(path.stem for path in folder.glob("*.py"))) or "a module of --package-path",
    )


def check_installed(module: str) -> None:
    """Refuses a module that comes with no package and is not installed.

    Raises:
        MissingInputError: there is no such module.
    """
    try:
        found = importlib.util.find_spec(module.partition(".")[0])
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise MissingInputError(
            f"--module-name: no module {module!r} is installed", action="name its folder with --package-path"
        )


def upload_folder(folder: Path, *, staging: str) -> str:
    """Packs a folder and puts it into the staging bucket, if the same content is not there yet; returns its URL.

    Raises:
        StorageWriteError: the bucket cannot be written.
    """
    data = pack_folder(folder)
    digest = hashlib.sha256(data).hexdigest()
    url = join_url(staging, "packages", f"{folder.resolve().name}-{digest[:16]}.tar.gz")
    bucket_url, key = split_url(url)
    bucket = open_bucket(bucket_url)
    if not bucket.exists(key):
        bucket.write(key, data)
    return url
