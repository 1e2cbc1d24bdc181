"""A source of images: a folder with one subfolder for each class, or a zip archive of such a folder."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import numpy as np

from lockstep.data.examples.features import AbstractFeature, FixedLenFeature
from lockstep.data.sources.base import AbstractPart, AbstractSource, Item, digest_of
from lockstep.data.sources.containers import AbstractContainer, ContainedFile
from lockstep.data.sources.transcoding import Transcoding
from lockstep.errors import InvalidInputError, MissingInputError, counted

FEATURES: Final[Mapping[str, AbstractFeature]] = {
    "image": FixedLenFeature((), bytes),
    "label": FixedLenFeature((), np.int64),
}
SUFFIXES: Final = (".jpg", ".jpeg", ".png")
PARTS: Final = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}
"""The parts by the names of their folders. The names mean parts, not classes, only if all sibling folders have them."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class _Image:
    key: str
    label: int
    file: ContainedFile


@final
class ImagePart(AbstractPart):
    """The images of a part, sorted by class and name.

    Args:
        container: the container of the files.
        images: the images of the part.
        transcoding: how to transcode the images.
    """

    def __init__(self, container: AbstractContainer, images: Sequence[_Image], *, transcoding: Transcoding) -> None:
        self._container = container
        self._images = images
        self._transcoding = transcoding

    @property
    def num_items(self) -> int:
        """See the base class."""
        return len(self._images)

    @property
    def size_bytes(self) -> int:
        """The total length of the files in bytes."""
        return sum(image.file.size_bytes for image in self._images)

    @property
    def has_any_order(self) -> bool:
        """True."""
        return True

    def keys(self) -> Iterator[str]:
        """Returns the paths of the files, beginning with the class: ``Cat/0.jpg``."""
        return (image.key for image in self._images)

    def items(self, numbers: Iterable[int] | None = None) -> Iterator[Item]:
        """See the base class."""
        for number in range(len(self._images)) if numbers is None else numbers:
            yield Item(number=number, key=self._images[number].key)

    def load(self, item: Item) -> Mapping[str, Any]:
        """Reads and checks an image, and transcodes it if that is requested."""
        image = self._images[item.number]
        return {"image": self._transcoding.apply(self._container.read(image.file)), "label": image.label}


@final
class ImageFiles(AbstractSource):
    """A data set of images in folders that are named after their classes.

    The folders of the classes may be in a common parent folder, such as ``PetImages``. If the folders at one level are
    all named ``train``, ``val`` or ``test`` (or a synonym in `PARTS`), they are the parts of the data set, and contain
    the folders of the classes. Ignores hidden files, files without a suffix of `SUFFIXES`, and the ``__MACOSX`` folders
    of archives.

    Args:
        container: the folder or archive.
        name: the name of the data set.
        transcoding: how to transcode the images; None keeps the files unchanged.

    Raises:
        MissingInputError: the container has no image.
        InvalidInputError: an image is not in a folder of its class.
    """

    def __init__(self, container: AbstractContainer, *, name: str, transcoding: Transcoding | None = None) -> None:
        self._container = container
        self._name = name
        self._transcoding = transcoding or Transcoding()
        named = [file for file in container.files if _is_visible(file.name)]
        files = [file for file in named if file.name.lower().endswith(SUFFIXES)]
        self._left_out = Counter(os.path.splitext(file.name.lower())[1] or "without an ending" for file in named)
        self._left_out.subtract(os.path.splitext(file.name.lower())[1] for file in files)
        if not files:
            raise MissingInputError(
                f"no image is in {container.url}",
                received=self._describe_left_out() or None,
                allowed=f"files that end with {', '.join(SUFFIXES)}",
            )
        found = _classify(files, where=container.url)
        self._classes = tuple(sorted({class_name for _, class_name, _, _ in found}))
        labels = {class_name: label for label, class_name in enumerate(self._classes)}
        self._images: dict[str, list[_Image]] = {}
        for part, class_name, key, file in found:
            self._images.setdefault(part, []).append(_Image(key=key, label=labels[class_name], file=file))

    @property
    def name(self) -> str:
        """See the base class."""
        return self._name

    @property
    def origin(self) -> str:
        """See the base class."""
        number = sum(map(len, self._images.values()))
        text = f"{counted(number, 'image')} of {counted(len(self._classes), 'class')} in {self._container.url}"
        left_out = self._describe_left_out()
        return f"{text} (other files left out: {left_out})" if left_out else text

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the class folders, sorted."""
        return self._classes

    @property
    def features(self) -> Mapping[str, AbstractFeature]:
        """The image as the bytes of a JPEG or PNG file, and the number of its class."""
        return FEATURES

    @property
    def options(self) -> Mapping[str, Any]:
        """See the base class."""
        return self._transcoding.to_json()

    @property
    def is_sorted(self) -> bool:
        """True: the images are sorted by class."""
        return True

    @property
    def notices(self) -> tuple[str, ...]:
        """None."""
        return ()

    @property
    def changed_time_s(self) -> float | None:
        """See the base class."""
        return self._container.changed_time_s

    def fingerprint(self) -> str:
        """Returns a digest of the files' names, lengths and times (checksums in an archive), and of the transcoding."""
        listed = (
            (part, image.key, image.file.size_bytes, image.file.version)
            for part, images in self._images.items()
            for image in images
        )
        return digest_of(self.options, *listed, *(() if self._transcoding.keeps_files else _versions()))

    def splits(self) -> Mapping[str, ImagePart]:
        """See the base class."""
        return {
            part: ImagePart(self._container, images, transcoding=self._transcoding)
            for part, images in self._images.items()
        }

    def _describe_left_out(self) -> str:
        return ", ".join(f"{count:,} {suffix}" for suffix, count in sorted(self._left_out.items()) if count)


def _is_visible(name: str) -> bool:
    return not any(part.startswith(".") or part == "__MACOSX" for part in name.split("/"))


def _classify(files: Sequence[ContainedFile], *, where: str) -> list[tuple[str, str, str, ContainedFile]]:
    """Returns the part, the class and the key of each image, from the folders below the common parent folder."""
    folders = [tuple(file.name.split("/")[:-1]) for file in files]
    depth = _num_common(folders)
    if len(set(folders)) == 1:
        depth -= 1  # a single class
    has_parts = all(len(folder) > depth + 1 and folder[depth].lower() in PARTS for folder in folders)
    depth += has_parts
    found: list[tuple[str, str, str, ContainedFile]] = []
    for file, folder in zip(files, folders, strict=True):
        if len(folder) <= max(depth, 0) or depth < 0:
            raise InvalidInputError(
                f"an image in {where} is not in a class folder",
                received=file.name,
                allowed="one subfolder for each class, such as PetImages/Cat/0.jpg",
            )
        part = PARTS[folder[depth - 1].lower()] if has_parts else "train"
        key = "/".join(file.name.split("/")[depth:])
        found.append((part, folder[depth], key, file))
    return found


def _num_common(folders: Sequence[tuple[str, ...]]) -> int:
    """Returns the number of leading folders that all paths have in common."""
    return next(
        (depth for depth, names in enumerate(zip(*folders, strict=False)) if len(set(names)) > 1),
        min(map(len, folders)),
    )


def _versions() -> Iterator[str]:
    """Yields the versions of the image packages, because another version may encode to other bytes."""
    import PIL  # an extra, which transcoding asks for anyway
    import simplejpeg

    yield f"{PIL.__version__} {simplejpeg.__version__}"
