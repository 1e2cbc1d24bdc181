"""tf.data's side, as its guide writes it: ``python -m reading.theirs CASE FOLDER EPOCHS``; needs TensorFlow alone."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Callable
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import tensorflow as tf

from reading.measure import BATCH_OF_PHOTOS, BATCH_OF_SMALL, CROP, NUM_PHOTOS, NUM_SMALL, PHOTO_SIZE, measure

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
    "photos-decoded": lambda folder: photos(folder, lambda image: image),
    "photos-uint8": lambda folder: photos(folder, augment),
    "photos-float32": lambda folder: photos(folder, lambda image: rescale(augment(image))),
    "photos-float32, a batch at a time": lambda folder: photos(folder, augment, rescale),
}

if __name__ == "__main__":
    case, folder, num_epochs = sys.argv[1:]
    measure(lambda: CASES[case](folder), num_epochs=int(num_epochs))
