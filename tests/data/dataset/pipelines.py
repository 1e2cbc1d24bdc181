"""Pipelines that are written the same for ``tf.data`` and for `lockstep.data`: functions of what has the names."""

from __future__ import annotations

import itertools

import numpy as np

FILES = {"a.tfrec": 5, "b.tfrec": 2, "c.tfrec": 4}
"""Records of each file in the folder, ``NAME:NUMBER`` each; ``.gz`` and ``.zlib`` ones beside them."""

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.arange(6)


def _files(folder, suffix=""):
    return [f"{folder}/{name}{suffix}" for name in FILES]


def _ragged(d):
    return d.Dataset.from_generator(
        lambda: ([1] * n for n in (1, 3, 2)), output_signature=d.TensorSpec(shape=(None,), dtype="int32")
    )


PIPELINES = {
    # What elements are.
    "floats are float32": lambda d, _: d.Dataset.from_tensor_slices([1.0, 2.5]),
    "whole numbers are int32": lambda d, _: d.Dataset.from_tensor_slices([1, 2]),
    "large whole numbers are int64": lambda d, _: d.Dataset.from_tensor_slices([1, 2**40]),
    "truth values": lambda d, _: d.Dataset.from_tensor_slices([True, False]),
    "text is bytes": lambda d, _: d.Dataset.from_tensor_slices(["a", "ü", ""]),
    "arrays keep their dtype": lambda d, _: d.Dataset.from_tensor_slices(np.array([1.0, 2.0])),
    "numpy's scalars keep theirs": lambda d, _: d.Dataset.from_tensors(np.float64(1.5)),
    "lists of numpy's scalars keep theirs": lambda d, _: d.Dataset.from_tensor_slices([np.float64(1.5), np.float64(2)]),
    "mixed numbers": lambda d, _: d.Dataset.from_tensor_slices([1, 2.5]),
    "nested lists": lambda d, _: d.Dataset.from_tensor_slices([[1, 2], [3, 4]]),
    "tuples": lambda d, _: d.Dataset.from_tensor_slices((X, Y)),
    "dictionaries": lambda d, _: d.Dataset.from_tensor_slices({"x": X, "y": Y}),
    "nested": lambda d, _: d.Dataset.from_tensor_slices(({"a": X, "b": [1, 2, 3, 4, 5, 6]}, (Y, Y))),
    "a tuple of lists": lambda d, _: d.Dataset.from_tensor_slices(([1, 2], [3.0, 4.0])),
    "from_tensors": lambda d, _: d.Dataset.from_tensors((X, 3, "text")),
    "from_tensors of a list": lambda d, _: d.Dataset.from_tensors([1, 2, 3]),
    "no rows": lambda d, _: d.Dataset.from_tensor_slices(np.zeros((0, 3), np.float32)),
    # Sources.
    "range": lambda d, _: d.Dataset.range(4),
    "range from to": lambda d, _: d.Dataset.range(2, 5),
    "range with a step": lambda d, _: d.Dataset.range(5, -5, -3),
    "range of another dtype": lambda d, _: d.Dataset.range(2, 5, output_type=np.float32),
    "an empty range": lambda d, _: d.Dataset.range(5, 2),
    "generator": lambda d, _: d.Dataset.from_generator(
        lambda: ((n, [n, n]) for n in range(3)),
        output_signature=(d.TensorSpec(shape=(), dtype="int32"), d.TensorSpec(shape=(2,), dtype="float32")),
    ),
    "generator with types": lambda d, _: d.Dataset.from_generator(
        lambda: iter([1, 2, 3]), output_types="int64", output_shapes=()
    ),
    "generator with arguments": lambda d, _: d.Dataset.from_generator(
        lambda stop: iter(range(int(stop))), args=(3,), output_signature=d.TensorSpec(shape=(), dtype="int32")
    ),
    "generator of dictionaries": lambda d, _: d.Dataset.from_generator(
        lambda: iter([{"a": 1, "b": "x"}]),
        output_signature={"a": d.TensorSpec(shape=(), dtype="float32"), "b": d.TensorSpec(shape=(), dtype="string")},
    ),
    "records": lambda d, folder: d.TFRecordDataset(_files(folder)),
    "records of one file": lambda d, folder: d.TFRecordDataset(_files(folder)[0]),
    "records, compressed": lambda d, folder: d.TFRecordDataset(_files(folder, ".gz"), compression_type="GZIP"),
    "records, zlib": lambda d, folder: d.TFRecordDataset(_files(folder, ".zlib"), "ZLIB"),
    "records of two files in turn": lambda d, folder: d.TFRecordDataset(_files(folder), num_parallel_reads=2),
    "records of three files in turn": lambda d, folder: d.TFRecordDataset(_files(folder), num_parallel_reads=3),
    "records of two files in turn, compressed": lambda d, folder: d.TFRecordDataset(
        _files(folder, ".gz"), "GZIP", num_parallel_reads=2
    ),
    "records of a data set of names": lambda d, folder: d.TFRecordDataset(
        d.Dataset.from_tensor_slices(_files(folder))
    ).batch(4),
    "records interleaved": lambda d, folder: d.Dataset.from_tensor_slices(_files(folder)).interleave(
        d.TFRecordDataset, cycle_length=2, block_length=2, num_parallel_calls=d.AUTOTUNE
    ),
    "list_files in order": lambda d, folder: d.TFRecordDataset(
        d.Dataset.list_files(f"{folder}/*.tfrec", shuffle=False)
    ),
    # Functions.
    "map": lambda d, _: d.Dataset.range(4).map(lambda v: v * 2),
    "map of tuples": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).map(lambda x, y: (x + 1, y)),
    "map of dictionaries": lambda d, _: d.Dataset.from_tensor_slices({"x": X, "y": Y}).map(
        lambda row: (row["x"] * 2, row["y"])
    ),
    "map of nested tuples": lambda d, _: d.Dataset.from_tensor_slices(((X, Y), Y)).map(
        lambda pair, y: {"sum": pair[1] + y}
    ),
    "map to Python's numbers": lambda d, _: d.Dataset.range(2).map(lambda v: (1, 2.5, "text", True)),
    "map to a list": lambda d, _: d.Dataset.range(3).map(lambda v: [v, v + 1]),
    "map in threads": lambda d, _: d.Dataset.range(9).map(lambda v: v + 1, num_parallel_calls=d.AUTOTUNE),
    "map in threads, positional": lambda d, _: d.Dataset.range(9).map(lambda v: v + 1, 2, True).batch(4),
    "filter": lambda d, _: d.Dataset.range(9).filter(lambda v: v % 3 == 0),
    "filter of tuples": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).filter(lambda x, y: y > 3),
    "filter of all": lambda d, _: d.Dataset.range(9).filter(lambda v: v > 9),
    "flat_map": lambda d, _: d.Dataset.from_tensor_slices([[1, 2], [3, 4]]).flat_map(d.Dataset.from_tensor_slices),
    "flat_map of tuples": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).flat_map(
        lambda x, y: d.Dataset.from_tensors(y).repeat(2)
    ),
    "interleave": lambda d, _: d.Dataset.range(1, 6).interleave(
        lambda v: d.Dataset.from_tensors(v).repeat(6), cycle_length=2, block_length=4
    ),
    "interleave of unequal lengths": lambda d, _: d.Dataset.range(7).interleave(d.Dataset.range, cycle_length=3),
    "interleave of unequal lengths in blocks": lambda d, _: d.Dataset.range(7).interleave(
        d.Dataset.range, cycle_length=3, block_length=2, num_parallel_calls=2
    ),
    "interleave of one": lambda d, _: d.Dataset.range(4).interleave(d.Dataset.range, cycle_length=1),
    # Order and number.
    "take": lambda d, _: d.Dataset.range(9).take(4),
    "take more than there is": lambda d, _: d.Dataset.range(3).take(4),
    "take all": lambda d, _: d.Dataset.range(3).take(-1),
    "take nothing": lambda d, _: d.Dataset.range(3).take(0),
    "take of what was filtered": lambda d, _: d.Dataset.range(9).filter(lambda v: v > 3).take(2),
    "skip": lambda d, _: d.Dataset.range(9).skip(4),
    "skip more than there is": lambda d, _: d.Dataset.range(3).skip(4),
    "skip all": lambda d, _: d.Dataset.range(3).skip(-1),
    "skip of what was filtered": lambda d, _: d.Dataset.range(9).filter(lambda v: v > 3).skip(2),
    "shard": lambda d, _: d.Dataset.range(10).shard(3, 1),
    "shard of what was filtered": lambda d, _: d.Dataset.range(10).filter(lambda v: v > 1).shard(3, 1),
    "repeat": lambda d, _: d.Dataset.range(3).repeat(2),
    "repeat for ever": lambda d, _: d.Dataset.range(3).repeat(),
    "repeat minus one": lambda d, _: d.Dataset.range(3).repeat(-1).take(7),
    "repeat never": lambda d, _: d.Dataset.range(3).repeat(0),
    "repeat of nothing for ever": lambda d, _: d.Dataset.range(0).repeat(),
    "repeat of what was filtered": lambda d, _: d.Dataset.range(6).filter(lambda v: v > 3).repeat(2),
    "concatenate": lambda d, _: d.Dataset.range(3).concatenate(d.Dataset.range(8, 10)),
    "concatenate what was filtered": lambda d, _: (
        d.Dataset.range(3).concatenate(d.Dataset.range(9).filter(lambda v: v > 6)).concatenate(d.Dataset.range(1))
    ),
    "zip": lambda d, _: d.Dataset.zip((d.Dataset.range(3), d.Dataset.range(5, 9))),
    "zip of a dictionary": lambda d, _: d.Dataset.zip({"a": d.Dataset.range(3), "b": d.Dataset.range(5)}),
    "zip of arguments": lambda d, _: d.Dataset.zip(d.Dataset.range(3), d.Dataset.range(5)),
    "zip nested": lambda d, _: d.Dataset.zip(
        (d.Dataset.range(3), (d.Dataset.range(5), d.Dataset.from_tensor_slices((X, Y))))
    ),
    "zip with what was filtered": lambda d, _: d.Dataset.zip(
        (d.Dataset.range(9), d.Dataset.range(9).filter(lambda v: v % 4 == 0))
    ),
    "zip with no end": lambda d, _: d.Dataset.zip((d.Dataset.range(2).repeat(), d.Dataset.range(5))),
    "enumerate": lambda d, _: d.Dataset.from_tensor_slices(X).enumerate(start=5),
    "enumerate what was filtered": lambda d, _: d.Dataset.range(9).filter(lambda v: v > 5).enumerate(),
    "enumerate tuples": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).enumerate().map(lambda i, row: (i, row[1])),
    # Batches.
    "batch": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).batch(4),
    "batch without a rest": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).batch(4, True),
    "batch of batches": lambda d, _: d.Dataset.range(9).batch(3).batch(2, drop_remainder=True),
    "batch of text": lambda d, _: d.Dataset.from_tensor_slices(["a", "bb", "ccc"]).batch(2),
    "batch of what was filtered": lambda d, _: d.Dataset.range(9).filter(lambda v: v % 2 == 0).batch(2),
    "batch of dictionaries": lambda d, _: d.Dataset.from_tensor_slices({"x": X, "y": Y}).batch(
        4, num_parallel_calls=d.AUTOTUNE
    ),
    "map of batches": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).batch(4).map(lambda x, y: (x * 2, y)),
    "batch over repetitions": lambda d, _: d.Dataset.range(3).repeat(3).batch(2),
    "repetitions of batches": lambda d, _: d.Dataset.range(3).batch(2).repeat(2),
    "unbatch": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).batch(4).unbatch(),
    "unbatch and batch": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).batch(4).unbatch().batch(5),
    "padded_batch": lambda d, _: _ragged(d).padded_batch(2),
    "padded_batch to a shape": lambda d, _: _ragged(d).padded_batch(2, padded_shapes=[5], padding_values=-1),
    "padded_batch of tuples": lambda d, _: (
        _ragged(d)
        .map(lambda row: (row, 7))
        .padded_batch(2, padded_shapes=([None], []), padding_values=(9, None), drop_remainder=True)
    ),
    "padded_batch of two dims": lambda d, _: d.Dataset.from_generator(
        lambda: (np.ones((n, 4 - n), np.float32) for n in (1, 3, 2)),
        output_signature=d.TensorSpec(shape=(None, None), dtype="float32"),
    ).padded_batch(3, padded_shapes=[None, 4]),
    "window": lambda d, _: d.Dataset.range(7).window(3).flat_map(lambda window: window.batch(3)),
    "window that slides": lambda d, _: (
        d.Dataset.range(7).window(3, shift=1, drop_remainder=True).flat_map(lambda window: window.batch(3))
    ),
    "window with a stride": lambda d, _: (
        d.Dataset.range(9).window(3, shift=2, stride=2).flat_map(lambda window: window.batch(3))
    ),
    "window of what was filtered": lambda d, _: (
        d.Dataset.range(9).filter(lambda v: v > 1).window(3, shift=2, stride=2).flat_map(lambda window: window.batch(3))
    ),
    "window with a stride and no rest": lambda d, _: (
        d.Dataset.range(9)
        .filter(lambda v: v > 1)
        .window(3, shift=1, stride=2, drop_remainder=True)
        .flat_map(lambda window: window.batch(3))
    ),
    "window with gaps": lambda d, _: d.Dataset.range(9).window(2, shift=4).flat_map(lambda window: window.batch(2)),
    "window of tuples": lambda d, _: (
        d.Dataset.from_tensor_slices((X, Y)).window(2).flat_map(lambda x, y: d.Dataset.zip((x.batch(2), y.batch(2))))
    ),
    # The rest.
    "cache": lambda d, _: d.Dataset.range(4).map(lambda v: v * 2).cache().repeat(2),
    "cache of what was filtered": lambda d, _: d.Dataset.range(9).filter(lambda v: v % 2 == 0).cache().repeat(2),
    "prefetch": lambda d, _: d.Dataset.range(9).batch(2).prefetch(d.AUTOTUNE),
    "prefetch of what was filtered": lambda d, _: d.Dataset.range(9).filter(lambda v: v > 2).prefetch(2),
    "apply": lambda d, _: d.Dataset.range(4).apply(lambda dataset: dataset.map(lambda v: v + 1)),
    "the usual": lambda d, _: (
        d.Dataset.from_tensor_slices((X, Y))
        .map(lambda x, y: (x / 255, y), num_parallel_calls=d.AUTOTUNE)
        .cache()
        .batch(4)
        .prefetch(d.AUTOTUNE)
    ),
}
"""By name, each of what has the names of ``tf.data`` and of a folder with the files."""

SHUFFLED = {
    "shuffle": lambda d, _: d.Dataset.range(20).shuffle(20),
    "shuffle of a few": lambda d, _: d.Dataset.range(20).shuffle(3),
    "shuffle of what was filtered": lambda d, _: d.Dataset.range(20).filter(lambda v: v % 2 == 0).shuffle(4, seed=1),
    "shuffle and repeat": lambda d, _: d.Dataset.range(5).shuffle(5).repeat(3),
    "shuffle and batch": lambda d, _: d.Dataset.from_tensor_slices((X, Y)).shuffle(10, seed=3).batch(4).unbatch(),
    "shuffle, once": lambda d, _: d.Dataset.range(20).shuffle(20, reshuffle_each_iteration=False),
    "list_files": lambda d, folder: d.TFRecordDataset(d.Dataset.list_files(f"{folder}/*.tfrec")),
}
"""Pipelines whose order is random: what counts is which elements there are."""

NUM_SHOWN = 40
"""Elements that are looked at, of pipelines without end too."""


def described(element):
    """An element, as JSON has it."""
    if isinstance(element, dict):
        return {"dict": {key: described(value) for key, value in element.items()}}
    if isinstance(element, tuple):
        return {"tuple": [described(value) for value in element]}
    array = np.asarray(element, object if isinstance(element, bytes) else None)
    values = [value.decode() if isinstance(value, bytes) else value for value in array.ravel().tolist()]
    return {"dtype": "string" if array.dtype == object else array.dtype.name, "shape": array.shape, "values": values}


def spec_described(spec):
    """A pipeline's ``element_spec``, as JSON has it."""
    if isinstance(spec, dict):
        return {"dict": {key: spec_described(value) for key, value in spec.items()}}
    if isinstance(spec, tuple):
        return {"tuple": [spec_described(value) for value in spec]}
    dtype = getattr(spec.dtype, "name", spec.dtype)
    shape = None if spec.shape is None or getattr(spec.shape, "rank", 0) is None else list(spec.shape)
    return {"dtype": "string" if dtype in ("string", "object") else dtype, "shape": shape}


def found(dataset):
    """What a pipeline gives."""
    elements = [described(element) for element in itertools.islice(dataset.as_numpy_iterator(), NUM_SHOWN)]
    return {
        "elements": elements,
        "cardinality": int(dataset.cardinality()),
        "spec": spec_described(dataset.element_spec),
    }
