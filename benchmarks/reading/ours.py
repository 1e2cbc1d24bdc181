"""Lockstep's side: ``python -m reading.ours ORDER``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from harness.protocol import read_order

import lockstep.data as data
from lockstep.data import Batches, Dataset  # imported by name, since they are imported when they are first used
from lockstep.data.images import ImageDecoder, RandomCrop, RandomFlip, Rescaling
from lockstep.data.sources import open_source
from lockstep.data.sources.transcoding import Transcoding
from reading.measure import (
    BATCH_OF_PHOTOS,
    BATCH_OF_SMALL,
    CROP,
    NUM_SHARDS,
    QUALITY,
    make_rows,
    pack_times,
    read_times,
    serve,
)


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


SMALL = {"image": data.RawFeature((28, 28)), "label": data.FixedLenFeature((), np.int64)}


def rows() -> Dataset:
    images, labels = make_rows()
    dataset = Dataset.from_tensor_slices((images, labels)).shuffle(len(images))
    return dataset.batch(BATCH_OF_SMALL).prefetch(data.AUTOTUNE)


def one_by_one(folder: str) -> Dataset:
    def parse(record: bytes) -> tuple[Any, Any]:
        columns = data.parse_single_example(record, SMALL)
        return columns["image"], columns["label"]

    records = data.TFRecordDataset(f"{folder}/small/*.tfrec").map(parse, num_parallel_calls=data.AUTOTUNE)
    return records.batch(BATCH_OF_SMALL).prefetch(data.AUTOTUNE)


def by_batch(folder: str) -> Dataset:
    parse = data.ExampleParser(SMALL)

    def make(records: Any) -> tuple[Any, Any]:
        columns = parse(records)
        return columns["image"], columns["label"]

    records = data.TFRecordDataset(f"{folder}/small/*.tfrec").batch(BATCH_OF_SMALL)
    return records.map(make, num_parallel_calls=data.AUTOTUNE).prefetch(data.AUTOTUNE)


STEPS = (RandomCrop(CROP, CROP), RandomFlip())
CASES: dict[str, Callable[[str], Any]] = {
    "small-in-order": lambda folder: small(folder, seed=None),
    "small-shuffled": lambda folder: small(folder, seed=0),
    "rows": lambda folder: rows(),
    "records-one-by-one": one_by_one,
    "records-by-batch": by_batch,
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
    order = read_order()
    case, folder = order["case"], order["folder"]
    if case in PACKING:
        serve(lambda: pack_times(lambda target: pack(folder, target, PACKING[case])), num_epochs=order["num_epochs"])
    else:
        serve(lambda: read_times(lambda: CASES[case](folder)), num_epochs=order["num_epochs"])
