"""The data that is measured with: Fashion-MNIST's shape, and photographs of 224 x 224 pixels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from reading.measure import NUM_PHOTOS, NUM_SHARDS, NUM_SMALL, PHOTO_SIZE, QUALITY

NUM_RAW: Final = 4_096


def prepare(folder: Path) -> None:
    """Makes what is not there yet: ``small``, ``photos`` and ``raw``, packed, and ``files``, a folder of images."""
    import lockstep.data as data

    raw = data.RawFeature((28, 28))
    number = data.FixedLenFeature((), np.int64)
    contents = data.FixedLenFeature((), bytes)
    picture = data.RawFeature((PHOTO_SIZE, PHOTO_SIZE, 3))
    _pack(folder / "small", _small(), NUM_SMALL, {"image": raw, "label": number})
    _write_files(folder / "files")
    _pack(folder / "photos", _photos(folder / "files"), NUM_PHOTOS, {"image": contents, "label": number})
    _pack(folder / "raw", _raw(), NUM_RAW, {"image": picture, "label": number}, num_shards=16)


def _pack(
    folder: Path, examples: Iterator[Mapping[str, Any]], count: int, features: Mapping[str, Any], **options: Any
) -> None:
    import lockstep.data as data

    if not any(folder.glob("*.manifest.json")):
        options = {"num_shards": NUM_SHARDS, **options}
        data.pack(examples, str(folder), name="data", split="train", features=features, num_examples=count, **options)


def _small() -> Iterator[Mapping[str, Any]]:
    rng = np.random.default_rng(0)
    for number in range(NUM_SMALL):
        yield {"image": rng.integers(0, 256, (28, 28), np.uint8), "label": number % 10}


def _photos(folder: Path) -> Iterator[Mapping[str, Any]]:
    for label, name in enumerate(("china", "flower")):
        for path in sorted((folder / name).iterdir()):
            yield {"image": path.read_bytes(), "label": label}


def _raw() -> Iterator[Mapping[str, Any]]:
    rng = np.random.default_rng(0)
    for number in range(NUM_RAW):
        yield {"image": rng.integers(0, 256, (PHOTO_SIZE, PHOTO_SIZE, 3), np.uint8), "label": number % 10}


def _write_files(folder: Path) -> None:
    """Cuts parts of many sizes out of scikit-learn's two photographs."""
    from sklearn.datasets import load_sample_image  # pip install scikit-learn: only these measurements need it

    from lockstep.data.images import encode_image, resize_image

    rng = np.random.default_rng(0)
    for name in ("china", "flower"):
        (folder / name).mkdir(parents=True, exist_ok=True)
        photo = load_sample_image(f"{name}.jpg")
        for number in range(NUM_PHOTOS // 2):
            side = int(rng.integers(200, 420))
            top, left = (int(rng.integers(0, length - side + 1)) for length in photo.shape[:2])
            part = resize_image(photo, size=(PHOTO_SIZE, PHOTO_SIZE), box=(top, left, top + side, left + side))
            path = folder / name / f"{number:04}.jpg"
            if not path.exists():
                path.write_bytes(encode_image(part, quality=QUALITY))
