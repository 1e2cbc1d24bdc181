"""Checks and unpacks the packages that programs import from."""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path, PurePosixPath
from typing import Final, final

from lockstep.errors import CorruptDataError, InvalidInputError

ARCHIVES: Final = (".tar.gz", ".tgz")
WHEEL: Final = ".whl"
MAX_WHEEL_METADATA_BYTES: Final = 64 * 1024
"""How much of a wheel's own description is read. A wheel from anybody may claim to unpack to any size."""


@final
@dataclass(frozen=True, kw_only=True)
class Code:
    """One unpacked package on the node.

    Attributes:
        folder: the folder that the package was unpacked to; for the first package, it is the program's working folder.
        module_path: the folders from which the package's modules are imported.
    """

    folder: Path
    module_path: tuple[Path, ...]


def unpack_package(url: str, *, data: bytes, folder: Path) -> Code:
    """Unpacks one package into an existing folder.

    A source archive (``.tar.gz``) contains one top folder, as `lockstep submit` and ``python -m build --sdist`` create
    it. Both the folder and its parent are importable, so ``train`` and ``my_job.train`` both name ``my_job/train.py``.
    A wheel is importable as if it were installed. The package's dependencies are not installed.

    Args:
        url: the URL of the package; its last part is the file's name.
        data: the content of the package.
        folder: the folder to unpack into.

    Raises:
        InvalidInputError: If the package is neither a source archive nor a wheel, or if it is a wheel with compiled
            parts.
        CorruptDataError: If the package is damaged, or contains a path outside the folder.
    """
    name = url.rpartition("/")[2]
    check_package(name, data=data)
    if _is_wheel(name):
        return _unpack_wheel(data, folder=folder, name=name)
    return _unpack_archive(data, folder=folder, url=url)


def check_package(name: str, *, data: bytes) -> None:
    """Rejects a package that no program could import from.

    Args:
        name: the name of the package's file.
        data: the content of the package.

    Raises:
        InvalidInputError: If the package is neither a source archive nor a wheel, or if it is a wheel with compiled
            parts.
        CorruptDataError: If the package is damaged.
    """
    if not name.endswith((*ARCHIVES, WHEEL)):
        raise InvalidInputError("unknown kind of package", received=name, allowed="a .tar.gz or a .whl")
    if not _is_wheel(name):
        return
    if message_from_bytes(_wheel_metadata(name, data=data)).get("Root-Is-Purelib", "").lower() != "true":
        raise InvalidInputError(
            f"the wheel {name} has compiled parts",
            allowed="wheels of pure Python",
            action="install it into the environment that Lockstep runs in",
        )


def package_digest(data: bytes) -> str:
    """Returns what distinguishes a package's content in the name of its object: 16 hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()[:16]


def pack_script(name: str, *, data: bytes, folder: str) -> bytes:
    """Returns a source archive with one script, which a job imports by its name without ``.py``.

    Args:
        name: the name of the script's file.
        data: the content of the script.
        folder: the name of the archive's top folder.

    Returns:
        The bytes of a ``.tar.gz``. They depend only on the arguments.
    """
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w") as archive,
    ):
        entry = tarfile.TarInfo(f"{folder}/{name}")
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def _wheel_metadata(name: str, *, data: bytes) -> bytes:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entry = next((entry for entry in archive.namelist() if entry.endswith(".dist-info/WHEEL")), None)
            if entry is not None:
                with archive.open(entry) as file:
                    return file.read(MAX_WHEEL_METADATA_BYTES)
    except (zipfile.BadZipFile, OSError, EOFError, RuntimeError, ValueError, zlib.error) as error:
        raise CorruptDataError(f"{name} is not a wheel: {error}") from None
    raise CorruptDataError(f"{name} is not a wheel: it has no .dist-info/WHEEL")


def _is_wheel(name: str) -> bool:
    return name.endswith(WHEEL)


def _unpack_wheel(data: bytes, *, folder: Path, name: str) -> Code:
    """Unpacks a wheel like an installer: the files under ``X.data/purelib`` are put beside the others (PEP 427)."""
    top = folder / ".wheels" / name.removesuffix(WHEEL)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            parts = PurePosixPath(entry.filename).parts
            if len(parts) > 2 and parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue  # scripts, headers and data are only for an installation
                entry.filename = "/".join(parts[2:])
            archive.extract(entry, top)  # removes "..", drives and leading slashes from names
    return Code(folder=top, module_path=(top,))


def _unpack_archive(data: bytes, *, folder: Path, url: str) -> Code:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            # The "data" filter rejects absolute names, links, and anything that points out of the folder.
            archive.extractall(folder, filter="data")
            names = {name.split("/", 1)[0] for name in archive.getnames()}
    except (tarfile.TarError, EOFError, OSError) as error:
        raise CorruptDataError(
            f"source archive {url} cannot be unpacked: {error}", action="submit the job again"
        ) from error
    if len(names) != 1:
        raise CorruptDataError(f"source archive {url}", received=sorted(names), allowed="one top folder")
    top = folder / names.pop()
    return Code(folder=top, module_path=(top, top.parent))
