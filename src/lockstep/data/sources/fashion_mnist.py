"""A source of Fashion-MNIST (Xiao, Rasul, Vollgraf 2017): 60,000 + 10,000 images of clothes in ten classes.

The files are searched for in this order: in a folder that the user names, in the folder of Debian's package
``dataset-fashion-mnist``, in the cache, and on the network.
"""

from __future__ import annotations

import hashlib
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

import numpy as np

from lockstep.data.sources.base import AbstractSmallImages, Split
from lockstep.data.sources.idx import parse_idx, uncompressed
from lockstep.errors import CorruptDataError, MissingInputError, UnavailableError
from lockstep.home import Home
from lockstep.storage import open_bucket

DEBIAN_FOLDER: Final = Path("/usr/share/datasets/fashion-mnist")
MIRRORS: Final = (
    "https://storage.googleapis.com/tensorflow/tf-keras-datasets",
    "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",
)
SILENCE_S: Final = 5.0
"""The longest time without data from the network, over all mirrors together, in seconds."""

_CLASSES: Final = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


@final
@dataclass(frozen=True, kw_only=True)
class DataFile:
    """One file of the data set.

    Attributes:
        name: the name of the published file, which is compressed with gzip.
        published_md5: the MD5 of the published file.
        content_md5: the MD5 of the uncompressed contents, for copies that were decompressed or compressed again.
    """

    name: str
    published_md5: str
    content_md5: str


FILES: Final[Mapping[str, tuple[DataFile, DataFile]]] = {
    "train": (
        DataFile(
            name="train-images-idx3-ubyte.gz",
            published_md5="8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            content_md5="f4a8712d7a061bf5bd6d2ca38dc4d50a",
        ),
        DataFile(
            name="train-labels-idx1-ubyte.gz",
            published_md5="25c81989df183df01b3e8a0aad5dffbe",
            content_md5="9018921c3c673c538a1fc5bad174d6f9",
        ),
    ),
    "test": (
        DataFile(
            name="t10k-images-idx3-ubyte.gz",
            published_md5="bef4ecab320f06d8554ea6380940ec79",
            content_md5="8181f5470baa50b63fa0f6fddb340f0a",
        ),
        DataFile(
            name="t10k-labels-idx1-ubyte.gz",
            published_md5="bb300cfdad3c16e7a12a480ee83cd310",
            content_md5="15d484375f8d13e6eb1aabb0c3f46965",
        ),
    ),
}
"""The file of the images and the file of the labels of each split."""


@final
class FashionMnist(AbstractSmallImages):
    """The data set, from files whose digests were verified.

    Args:
        contents: the uncompressed files, by name.
        origin: a text that says where the files come from.
    """

    def __init__(self, contents: Mapping[str, bytes], *, origin: str) -> None:
        self._contents = contents
        self._origin = origin

    @property
    def name(self) -> str:
        """See the base class."""
        return "fashion-mnist"

    @property
    def origin(self) -> str:
        """See the base class."""
        return self._origin

    @property
    def classes(self) -> tuple[str, ...]:
        """See the base class."""
        return _CLASSES

    def splits(self) -> Mapping[str, Split]:
        """See the base class."""
        return {
            split: Split(
                images=parse_idx(self._contents[images.name], name=images.name),
                labels=parse_idx(self._contents[labels.name], name=labels.name).astype(np.int64),
            )
            for split, (images, labels) in FILES.items()
        }


def find_fashion_mnist(
    folder: str | os.PathLike[str] | None = None,
    *,
    cache: Path | None = None,
    debian_folder: Path = DEBIAN_FOLDER,
    mirrors: Sequence[str] = MIRRORS,
    silence_s: float = SILENCE_S,
    files: Mapping[str, tuple[DataFile, DataFile]] = FILES,
) -> FashionMnist:
    """Finds the data set, and downloads it into the cache if it is not on this machine.

    Args:
        folder: the folder with the files. If it is given, the files are not searched for elsewhere.
        cache: the folder for downloads; by default, ``fashion-mnist`` in the cache of `lockstep.home.Home`.
        debian_folder: the folder of the Debian package.
        mirrors: the base URLs to download from, tried in order.
        silence_s: the longest time without data from the network, over all mirrors together, in seconds.
        files: the files and their digests.

    Raises:
        MissingInputError: ``folder`` lacks a file.
        CorruptDataError: the digest of a file does not match.
        UnavailableError: the files are not on this machine, and no mirror has them.
    """
    if folder is not None:
        named = Path(folder)
        missing = [file.name for file in _each(files) if _path_in(named, file) is None]
        if missing:
            raise MissingInputError(
                f"{named} lacks {', '.join(missing)}", action="name the folder that has the four files of Fashion-MNIST"
            )
        return FashionMnist(_read(named, files), origin=f"the folder {named}")
    cache = Home.from_env().cache / "fashion-mnist" if cache is None else cache
    for place, origin in ((debian_folder, "the Debian package dataset-fashion-mnist"), (cache, f"the cache {cache}")):
        if all(_path_in(place, file) is not None for file in _each(files)):
            return FashionMnist(_read(place, files), origin=origin)
    mirror = _download(cache, mirrors, silence_s, files)
    return FashionMnist(_read(cache, files), origin=f"{mirror}, kept in {cache}")


def _each(files: Mapping[str, tuple[DataFile, DataFile]]) -> Iterator[DataFile]:
    for pair in files.values():
        yield from pair


def _path_in(folder: Path, file: DataFile) -> Path | None:
    paths = (folder / file.name, folder / file.name.removesuffix(".gz"))
    return next((path for path in paths if path.is_file()), None)


def _read(folder: Path, files: Mapping[str, tuple[DataFile, DataFile]]) -> dict[str, bytes]:
    contents: dict[str, bytes] = {}
    bucket = open_bucket(folder)
    for file in _each(files):
        path = _path_in(folder, file)
        assert path is not None  # the caller has checked
        contents[file.name] = _checked(bucket.read(path.name), file, where=str(path))
    return contents


def _checked(data: bytes, file: DataFile, *, where: str) -> bytes:
    is_published = _md5(data) == file.published_md5
    content = uncompressed(data, name=where)
    if not is_published and _md5(content) != file.content_md5:
        raise CorruptDataError(
            f"{where}: not the file of Fashion-MNIST",
            received=f"MD5 {_md5(data)}, of its content {_md5(content)}",
            allowed=f"{file.published_md5}, of its content {file.content_md5}",
            action="delete it and get it again",
        )
    return content


def _md5(data: bytes) -> str:
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def _download(
    cache: Path, mirrors: Sequence[str], silence_s: float, files: Mapping[str, tuple[DataFile, DataFile]]
) -> str:
    """Downloads the files that are missing in the cache from the first working mirror, and returns that mirror."""
    bucket = open_bucket(cache)
    failures: list[str] = []
    silence = _Silence(limit_s=silence_s)
    for mirror in mirrors:
        try:
            for file in _each(files):
                if _path_in(cache, file) is not None:
                    continue
                url = f"{mirror}/{file.name}"
                data = _fetch(url, silence)
                _checked(data, file, where=url)
                bucket.write(file.name, data)
            return mirror
        except (OSError, CorruptDataError) as error:
            failures.append(f"{mirror}: {error}")
    raise UnavailableError(
        f"Fashion-MNIST is not on this machine and could not be downloaded ({'; '.join(failures)})",
        action="install the Debian package dataset-fashion-mnist, or name a folder that has its four files",
    )


@final
class _Silence:
    """The time since the last data from the network, compared with a limit."""

    def __init__(self, *, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since_s = time.monotonic()

    @property
    def left_s(self) -> float:
        return max(0.0, self.limit_s - (time.monotonic() - self._since_s))

    def reset(self) -> None:
        self._since_s = time.monotonic()


def _fetch(url: str, silence: _Silence) -> bytes:
    """Downloads one file.

    Raises:
        OSError: the download failed, or no data came from the network for too long.
    """
    import httpx  # slow to import, and rarely needed

    # Downloads in a thread, because resolving the host name has no timeout. A thread that is abandoned ends at its own
    # timeout.
    heard: queue.SimpleQueue[bytes | Exception | None] = queue.SimpleQueue()

    def listen() -> None:
        try:
            with httpx.stream("GET", url, timeout=silence.limit_s, follow_redirects=True) as response:
                response.raise_for_status()
                for part in response.iter_bytes():
                    heard.put(part)
            heard.put(None)
        except Exception as error:
            heard.put(error)

    threading.Thread(target=listen, name="lockstep-download", daemon=True).start()
    parts: list[bytes] = []
    while True:
        try:
            part = heard.get(timeout=silence.left_s)
        except queue.Empty:
            raise TimeoutError(f"silent for {silence.limit_s:g} s") from None
        if part is None:
            return b"".join(parts)
        if isinstance(part, Exception):
            raise OSError(str(part) or type(part).__name__) from part
        silence.reset()
        parts.append(part)
