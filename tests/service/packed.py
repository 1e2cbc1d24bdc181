"""Packed data sets of images with labels, whose texts are hostile."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from lockstep.data import FixedLenFeature, Manifest, Shard, ShardName, encode_example, frame
from lockstep.data.images.codec import encode_image

HOSTILE = "<script>alert(1)</script>"


def pack(folder: Path, records: list[dict[str, Any]], *, pack: Callable[[bytes], bytes] = bytes, **fields: Any) -> str:
    """Writes a data set of two files with a manifest, and returns its URL."""
    folder.mkdir(parents=True, exist_ok=True)
    shards: list[Shard] = []
    for index, part in enumerate((records[::2], records[1::2])):
        name = str(ShardName(data_set="pets-train", index=index, num_shards=2, num_records=len(part)))
        data = pack(b"".join(frame(encode_example(record)) for record in part))
        (folder / name).write_bytes(data)
        shards.append(Shard(file=name, num_records=len(part), size_bytes=len(data), crc32c="00000000"))
    given = {
        "name": "pets",
        "split": "train",
        "shards": tuple(shards),
        "features": {"image": FixedLenFeature((), bytes), "label": FixedLenFeature((), np.int64)},
        "source": HOSTILE,
        "created": datetime(2030, 1, 2, tzinfo=UTC),
        "classes": ("cat", HOSTILE),
    }
    manifest = Manifest(**{**given, **fields})
    (folder / manifest.key).write_text(manifest.to_json())
    return f"{folder}/pets-train"


def images(number: int, *, size: int = 8) -> list[dict[str, Any]]:
    """Returns records with a JPEG or a PNG and a label."""
    pixels = np.arange(size * size * 3, dtype=np.uint8).reshape(size, size, 3)
    codecs = ("jpeg", "png")
    return [{"image": encode_image(pixels, codec=codecs[each % 2]), "label": each % 2} for each in range(number)]
