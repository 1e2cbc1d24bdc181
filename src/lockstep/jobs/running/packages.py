"""Packages that programs import from: what they may be, and how one is unpacked."""

from __future__ import annotations

import io
import tarfile
import zipfile
from dataclasses import dataclass
from email import message_from_bytes
from pathlib import Path, PurePosixPath
from typing import Final, final

from lockstep.errors import CorruptDataError, InvalidInputError

ARCHIVES: Final = (".tar.gz", ".tgz")
WHEEL: Final = ".whl"


@final
@dataclass(frozen=True, kw_only=True)
class Code:
    """One package on the node.

    Attributes:
        folder: what it was unpacked to; the program's working folder, where it is the first package.
        module_path: folders from which its modules are imported.
    """

    folder: Path
    module_path: tuple[Path, ...]


def unpack_package(url: str, *, data: bytes, folder: Path) -> Code:
    """Unpacks one package into a folder, which is there.

    A source archive (``.tar.gz``) holds one top folder, as `lockstep submit` and ``python -m build --sdist`` make it:
    both the folder and its parent are importable, so that ``train`` and ``my_job.train`` both name ``my_job/train.py``.
    A wheel is importable as it is installed. What a package depends on is not installed.

    Args:
        url: where it comes from; its last part is its file's name.
        data: its content.
        folder: where to unpack.

    Raises:
        InvalidInputError: it is of another kind, or a wheel with compiled parts.
        CorruptDataError: it is damaged, or reaches outside the folder.
    """
    name = url.rpartition("/")[2]
    check_package(name, data=data)
    if _is_wheel(name):
        return _unpack_wheel(data, folder=folder, name=name)
    return _unpack_archive(data, folder=folder, url=url)


def check_package(name: str, *, data: bytes) -> None:
    """Refuses a package that no program could import from.

    Args:
        name: its file's name.
        data: its content.

    Raises:
        InvalidInputError: it is of another kind than a source archive and a wheel, or a wheel with compiled parts.
        CorruptDataError: it is damaged.
    """
    if not name.endswith((*ARCHIVES, WHEEL)):
        raise InvalidInputError("a package of a kind that is not known", received=name, allowed="a .tar.gz or a .whl")
    if not _is_wheel(name):
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            about = [archive.read(entry) for entry in archive.namelist() if entry.endswith(".dist-info/WHEEL")]
    except (zipfile.BadZipFile, OSError) as error:
        raise CorruptDataError(f"{name} is not a wheel: {error}") from None
    if not about:
        raise CorruptDataError(f"{name} is not a wheel: it has no .dist-info/WHEEL")
    if message_from_bytes(about[0]).get("Root-Is-Purelib", "").lower() != "true":
        raise InvalidInputError(
            f"the wheel {name} has compiled parts",
            allowed="wheels of pure Python",
            action="install it into the environment that Lockstep runs in",
        )


def _is_wheel(name: str) -> bool:
    return name.endswith(WHEEL)


def _unpack_wheel(data: bytes, *, folder: Path, name: str) -> Code:
    """Unpacks a wheel as installing it would: what lies under ``X.data/purelib`` stands beside the rest (PEP 427)."""
    top = folder / ".wheels" / name.removesuffix(WHEEL)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        for entry in archive.infolist():
            parts = PurePosixPath(entry.filename).parts
            if len(parts) > 2 and parts[0].endswith(".data"):
                if parts[1] not in ("purelib", "platlib"):
                    continue  # scripts, headers and data of an installation, which this is not
                entry.filename = "/".join(parts[2:])
            archive.extract(entry, top)  # which takes "..", drives and leading slashes out of names
    return Code(folder=top, module_path=(top,))


def _unpack_archive(data: bytes, *, folder: Path, url: str) -> Code:
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            # The "data" filter refuses absolute names, links and anything that points out of the folder.
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
