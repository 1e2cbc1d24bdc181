"""tf.data's side, as its guide writes it: ``python -m reading.theirs ORDER``; needs TensorFlow alone."""

from __future__ import annotations

import glob
import os
import random
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf
from harness.protocol import read_order

from reading.measure import (
    BATCH_OF_PHOTOS,
    BATCH_OF_SMALL,
    CROP,
    NUM_PHOTOS,
    NUM_SHARDS,
    NUM_SMALL,
    PHOTO_SIZE,
    QUALITY,
    make_rows,
    pack_times,
    read_times,
    serve,
)

SPEC = {"image": tf.io.FixedLenFeature((), tf.string), "label": tf.io.FixedLenFeature((), tf.int64)}
AUTOTUNE = tf.data.AUTOTUNE


def read(folder: str) -> Any:
    return tf.data.TFRecordDataset(sorted(glob.glob(f"{folder}/*.tfrec")), num_parallel_reads=AUTOTUNE)


def small(folder: str, *, shuffled: bool) -> Any:
    def parse(records: Any) -> Any:
        columns = tf.io.parse_example(records, SPEC)
        return tf.reshape(tf.io.decode_raw(columns["image"], tf.uint8), (-1, 28, 28)), columns["label"]

    dataset = read(f"{folder}/small")
    if shuffled:
        dataset = dataset.shuffle(NUM_SMALL)
    return dataset.batch(BATCH_OF_SMALL).map(parse, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)


def rows() -> Any:
    images, labels = make_rows()
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(NUM_SMALL)
    return dataset.batch(BATCH_OF_SMALL).prefetch(AUTOTUNE)


def one_by_one(folder: str) -> Any:
    def parse(record: Any) -> Any:
        columns = tf.io.parse_single_example(record, SPEC)
        return tf.reshape(tf.io.decode_raw(columns["image"], tf.uint8), (28, 28)), columns["label"]

    dataset = read(f"{folder}/small").map(parse, num_parallel_calls=AUTOTUNE)
    return dataset.batch(BATCH_OF_SMALL).prefetch(AUTOTUNE)


def photos(folder: str, change: Callable[[Any], Any], change_batch: Callable[[Any], Any] | None = None) -> Any:
    def decode(record: Any) -> Any:
        columns = tf.io.parse_single_example(record, SPEC)
        image = tf.io.decode_jpeg(columns["image"], channels=3)
        return change(tf.ensure_shape(image, (PHOTO_SIZE, PHOTO_SIZE, 3))), columns["label"]

    dataset = read(f"{folder}/photos").shuffle(NUM_PHOTOS)
    dataset = dataset.map(decode, num_parallel_calls=AUTOTUNE).batch(BATCH_OF_PHOTOS)
    if change_batch is not None:
        dataset = dataset.map(lambda images, labels: (change_batch(images), labels), num_parallel_calls=AUTOTUNE)
    return dataset.prefetch(AUTOTUNE)


def augment(image: Any) -> Any:
    return tf.image.random_flip_left_right(tf.image.random_crop(image, (CROP, CROP, 3)))


def rescale(images: Any) -> Any:
    return tf.cast(images, tf.float32) / 127.5 - 1


CASES: dict[str, Callable[[str], Any]] = {
    "small-in-order": lambda folder: small(folder, shuffled=False),
    "small-shuffled": lambda folder: small(folder, shuffled=True),
    "rows": lambda folder: rows(),
    "records-one-by-one": one_by_one,
    "records-by-batch": lambda folder: small(folder, shuffled=False),
    "photos-decoded": lambda folder: photos(folder, lambda image: image),
    "photos-uint8": lambda folder: photos(folder, augment),
    "photos-float32": lambda folder: photos(folder, lambda image: rescale(augment(image))),
    "photos-float32, a batch at a time": lambda folder: photos(folder, augment, rescale),
}


def pack(folder: str, target: str, *, encodes: bool) -> None:
    def load(path: Any, label: Any) -> Any:
        contents = tf.io.read_file(path)
        image = tf.io.decode_jpeg(contents, channels=3)  # which tells a damaged file
        if encodes:
            resized = tf.image.resize(image, (CROP, CROP), antialias=True)
            contents = tf.io.encode_jpeg(tf.cast(tf.round(resized), tf.uint8), quality=QUALITY)
        elif tf.size(image) == 0:
            contents = tf.constant(b"")
        return contents, label

    paths = [
        (path, label)
        for label, name in enumerate(("china", "flower"))
        for path in glob.glob(f"{folder}/files/{name}/*")
    ]
    random.Random(0).shuffle(paths)  # noqa: S311 - an order, no secret
    dataset = tf.data.Dataset.from_tensor_slices(tuple(map(list, zip(*paths, strict=True))))
    dataset = dataset.map(load, num_parallel_calls=AUTOTUNE).prefetch(AUTOTUNE)
    per_shard = -(-len(paths) // NUM_SHARDS)
    writer = None
    for number, (contents, label) in enumerate(dataset.as_numpy_iterator()):
        if number % per_shard == 0:
            if writer is not None:
                writer.close()
            writer = tf.io.TFRecordWriter(f"{target}/photos-{number // per_shard:05}-of-{NUM_SHARDS:05}.tfrec")
        features = {
            "image": tf.train.Feature(bytes_list=tf.train.BytesList(value=[contents])),
            "label": tf.train.Feature(int64_list=tf.train.Int64List(value=[label])),
        }
        writer.write(tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString())
    writer.close()


if __name__ == "__main__":
    order = read_order()
    case, folder = order["case"], order["folder"]
    encodes = case == "pack-encoded"
    if case.startswith("pack-"):
        serve(lambda: pack_times(lambda target: pack(folder, target, encodes=encodes)), num_epochs=order["num_epochs"])
    else:
        serve(lambda: read_times(lambda: CASES[case](folder)), num_epochs=order["num_epochs"])
