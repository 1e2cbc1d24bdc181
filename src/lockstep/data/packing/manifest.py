"""The manifest of a packed split: a small JSON file beside the shards that describes their contents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, final

from lockstep.data.examples.features import AbstractFeature, feature_from_json
from lockstep.errors import CorruptDataError
from lockstep.storage import join_url, read_url

SUFFIX: Final = ".manifest.json"
_FORMAT: Final = 1
_CRC: Final = re.compile(r"[0-9a-f]{8}")


@final
@dataclass(frozen=True, kw_only=True)
class Shard:
    """One file of a data set.

    Attributes:
        file: the name of the file.
        num_records: the number of records in the file.
        size_bytes: the length of the file in bytes.
        crc32c: the CRC-32C of the whole file, as 8 hexadecimal digits.
    """

    file: str
    num_records: int
    size_bytes: int
    crc32c: str


@final
@dataclass(frozen=True, kw_only=True)
class Skipped:
    """A damaged item that was skipped.

    Attributes:
        key: the item's key, such as a file's path or a row's key.
        reason: the description of the damage.
    """

    key: str
    reason: str


@final
@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of one split of a data set.

    Attributes:
        name: the name of the data set, such as "fashion-mnist".
        split: the name of the split, such as "train".
        shards: the shards, in the order of their index.
        features: the features of a record, by name.
        source: a text that says where the data came from.
        created: the time at which packing began, with a time zone.
        classes: the names of the classes, by label number; empty if there are none.
        options: the packing options, by name, as JSON values.
        compression: the compression of each shard as a whole: "GZIP", "ZLIB" or None.
        skipped: the damaged items that were skipped.
        lockstep_version: the version of Lockstep that packed the data; "" if unknown.
        fingerprint: the fingerprint of source and options; None if it could miss a change of the source.
    """

    name: str
    split: str
    shards: tuple[Shard, ...]
    features: Mapping[str, AbstractFeature]
    source: str
    created: datetime
    classes: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    compression: str | None = None
    skipped: tuple[Skipped, ...] = ()
    lockstep_version: str = ""
    fingerprint: str | None = None

    @property
    def key(self) -> str:
        """The key of the manifest in the bucket."""
        return manifest_key(self.name, split=self.split)

    @property
    def num_records(self) -> int:
        """The number of records of all shards."""
        return sum(shard.num_records for shard in self.shards)

    @property
    def size_bytes(self) -> int:
        """The total length of all shards, in bytes."""
        return sum(shard.size_bytes for shard in self.shards)

    def to_json(self) -> str:
        """Serializes the manifest to JSON."""
        document = {
            "format": _FORMAT,
            "name": self.name,
            "split": self.split,
            "num_records": self.num_records,
            "size_bytes": self.size_bytes,
            "source": self.source,
            "created": self.created.isoformat(),
            "lockstep_version": self.lockstep_version,
            "options": dict(self.options),
            "fingerprint": self.fingerprint,
            "compression": self.compression,
            "classes": list(self.classes),
            "features": {name: feature.to_json() for name, feature in self.features.items()},
            "num_skipped": len(self.skipped),
            "skipped": [vars(item) for item in self.skipped],
            "shards": [vars(shard) for shard in self.shards],
        }
        return json.dumps(document, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes, *, url: str) -> Manifest:
        """Parses a manifest.

        Args:
            text: the contents of the manifest file.
            url: the URL of the file, for error messages.

        Raises:
            CorruptDataError: the text is not a manifest, or its format is not supported by this version.
        """
        try:
            document: dict[str, Any] = json.loads(text)
            if document["format"] != _FORMAT:
                raise CorruptDataError(
                    f"{url}: a manifest of another format",
                    received=document["format"],
                    allowed=f"{_FORMAT}",
                    action="read it with the version of Lockstep that packed the data, or pack it again",
                )
            return cls(
                name=_text(document["name"]),
                split=_text(document["split"]),
                shards=tuple(_read_shard(**shard) for shard in document["shards"]),
                features={name: feature_from_json(value) for name, value in document["features"].items()},
                source=_text(document["source"]),
                created=datetime.fromisoformat(document["created"]),
                classes=tuple(map(_text, document["classes"])),
                options=dict(document["options"]),
                compression=_text_or_none(document["compression"]),
                fingerprint=_text_or_none(document.get("fingerprint")),  # earlier versions did not write it
                skipped=tuple(Skipped(key=_text(of["key"]), reason=_text(of["reason"])) for of in document["skipped"]),
                lockstep_version=_text(document.get("lockstep_version", "")),
            )
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError) as error:
            raise CorruptDataError(f"{url}: not a manifest ({type(error).__name__}: {error})") from None


def _read_shard(*, file: object, num_records: object, size_bytes: object, crc32c: object) -> Shard:
    """Checks the description of a shard, which is not trusted: its file has to be in the manifest's own folder."""
    file, crc32c = _text(file), _text(crc32c)
    if not file or "/" in file or not file.isprintable() or not _CRC.fullmatch(crc32c):
        raise ValueError(f"not a shard: {file!r}, {crc32c!r}")
    return Shard(file=file, num_records=_count(num_records), size_bytes=_count(size_bytes), crc32c=crc32c)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    return value


def _text_or_none(value: object) -> str | None:
    return None if value is None else _text(value)


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{value!r:.40} is not a count")
    return value


def manifest_key(name: str, *, split: str) -> str:
    """Returns the key of a split's manifest in its bucket."""
    return f"{name}-{split}{SUFFIX}"


def read_manifest(bucket_url: str, *, name: str, split: str) -> Manifest:
    """Reads the manifest of a packed split.

    Args:
        bucket_url: the URL of the bucket that has the data set.
        name: the name of the data set.
        split: the name of the split.

    Raises:
        MissingInputError: the manifest does not exist.
        CorruptDataError: the manifest is invalid.
    """
    url = join_url(bucket_url, manifest_key(name, split=split))
    return Manifest.from_json(read_url(url), url=url)
