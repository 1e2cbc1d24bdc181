"""Lockstep's side: ``python -m reading.ours CASE FOLDER EPOCHS`` prints what `reading.measure` reads."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import lockstep.data as data
from lockstep.data import Batches  # imported by name, since it is imported when it is first used
from lockstep.data.images import ImageDecoder, RandomCrop, RandomFlip, Rescaling
from lockstep.data.sources import open_source
from lockstep.data.sources.transcoding import Transcoding
from reading.measure import BATCH_OF_PHOTOS, BATCH_OF_SMALL, CROP, NUM_SHARDS, QUALITY, measure, measure_packing


def small(folder: str, *, seed: int | None) -> Batches:
    parse = data.ExampleParser({"image": data.RawFeature((28, 28)), "label": data.FixedLenFeature((), np.int64)})

    def transform(records: Any) -> tuple[np.ndarray, np.ndarray]:
        columns = parse(records)
        return columns["image"], columns["label"]

    source = data.RecordSource(f"{folder}/small/*.tfrec")
    return Batches(source, batch_size=BATCH_OF_SMALL, transform=transform, seed=seed)


def photos(folder: str, decode: ImageDecoder) -> Batches:
    parse = data.ExampleParser({"image": data.FixedLenFeature((), bytes), "label": data.FixedLenFeature((), np.int64)})

    def transform(records: Any, random: data.RecordRandom) -> tuple[np.ndarray, np.ndarray]:
        columns = parse(records)
        return decode(columns["image"], random), columns["label"]

    source = data.RecordSource(f"{folder}/photos/*.tfrec")
    return Batches(source, batch_size=BATCH_OF_PHOTOS, random_transform=transform, seed=0)


STEPS = (RandomCrop(CROP, CROP), RandomFlip())
CASES: dict[str, Callable[[str], Any]] = {
    "small-in-order": lambda folder: small(folder, seed=None),
    "small-shuffled": lambda folder: small(folder, seed=0),
    "photos-decoded": lambda folder: photos(folder, ImageDecoder()),
    "photos-uint8": lambda folder: photos(folder, ImageDecoder(*STEPS)),
    "photos-float32": lambda folder: photos(folder, ImageDecoder(*STEPS, Rescaling(1 / 127.5, -1))),
}

PACKING: dict[str, Transcoding] = {
    "pack-as-they-are": Transcoding(),
    "pack-encoded": Transcoding(size=(CROP, CROP), codec="jpeg", quality=QUALITY),
}


def pack(folder: str, target: str, transcoding: Transcoding) -> None:
    source = open_source(f"{folder}/files", transcoding=transcoding)
    data.pack(source, target, name="photos", num_shards=NUM_SHARDS)


if __name__ == "__main__":
    case, folder, num_epochs = sys.argv[1:]
    if case in PACKING:
        measure_packing(lambda target: pack(folder, target, PACKING[case]), num_times=int(num_epochs))
    else:
        measure(lambda: CASES[case](folder), num_epochs=int(num_epochs))
