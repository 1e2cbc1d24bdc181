"""What TensorFlow writes we read, and the other way round: where TensorFlow is installed."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.data import (
    CompressedRecords,
    FixedLenFeature,
    FixedLenSequenceFeature,
    RaggedFeature,
    RecordSource,
    SparseFeature,
    VarLenFeature,
    decode_example,
    decode_sequence_example,
    encode_example,
    encode_sequence_example,
    frame,
    parse_batch,
    parse_sequence_batch,
)
from lockstep.data.files.compression import find_compression

tf = pytest.importorskip("tensorflow")

I64, F32 = np.int64, np.float32
NUM_RECORDS = 64


def rng() -> np.random.Generator:
    return np.random.default_rng(7)


def some_values(random: np.random.Generator) -> dict[str, Any]:
    """One record: integers, floats and bytes of any number, what they are cut into, and their places."""
    lengths = random.integers(0, 4, random.integers(0, 5))
    places = random.permutation(20)[: random.integers(0, 6)]
    return {
        "fixed": random.integers(-(2**63), 2**63 - 1, 3),
        "values": random.integers(-300, 300, lengths.sum()),
        "lengths": lengths,
        "splits": np.concatenate([[0], np.cumsum(lengths)]),
        "weights": random.normal(size=len(places)).astype(F32),
        "places": places,
        "names": np.array([random.bytes(random.integers(0, 9)) for _ in range(random.integers(0, 4))] or [b""], object),
        "pairs": random.integers(0, 9, 2 * random.integers(0, 4)),
    }


def feature(values: Any) -> Any:
    if values.dtype == object:
        return tf.train.Feature(bytes_list=tf.train.BytesList(value=list(values)))
    if values.dtype == F32:
        return tf.train.Feature(float_list=tf.train.FloatList(value=values))
    return tf.train.Feature(int64_list=tf.train.Int64List(value=values))


def check(ours: Any, theirs: Any) -> None:
    """Compares an array, a sparse one or a ragged one with TensorFlow's."""
    if isinstance(theirs, tf.RaggedTensor):
        assert ours.to_list() == theirs.to_list()
        assert ours.row_splits.dtype == theirs.row_splits.numpy().dtype
    elif isinstance(theirs, tf.SparseTensor):
        for name in ("indices", "values", "dense_shape"):
            np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name).numpy())
    else:
        assert ours.dtype == theirs.numpy().dtype
        np.testing.assert_array_equal(ours, theirs.numpy())


def test_examples_go_both_ways() -> None:
    random = rng()
    for _ in range(NUM_RECORDS):
        values = some_values(random)
        theirs = tf.train.Example(features=tf.train.Features(feature={k: feature(v) for k, v in values.items()}))
        ours = encode_example(values)
        assert tf.train.Example.FromString(ours) == theirs
        decoded = decode_example(theirs.SerializeToString())
        assert {name: list(found) for name, found in decoded.items()} == {k: list(v) for k, v in values.items()}
        assert ours == theirs.SerializeToString(deterministic=True)


@pytest.mark.parametrize("num_records", [3, NUM_RECORDS])
def test_features_become_what_tensorflow_makes_of_them(num_records: int) -> None:
    random = rng()
    records = [encode_example(some_values(random)) for _ in range(num_records)]
    records[2] = encode_example({"fixed": [1, 2, 3]})
    ragged, theirs_ragged = RaggedFeature, tf.io.RaggedFeature
    specs: dict[str, tuple[Any, Any]] = {
        "fixed": (FixedLenFeature((3,), I64), tf.io.FixedLenFeature((3,), tf.int64)),
        "absent": (FixedLenFeature((2,), F32, [1, 2]), tf.io.FixedLenFeature((2,), tf.float32, [1, 2])),
        "pairs": (
            FixedLenSequenceFeature((2,), I64, True, -1),
            tf.io.FixedLenSequenceFeature((2,), tf.int64, True, -1),
        ),
        "names": (VarLenFeature(bytes), tf.io.VarLenFeature(tf.string)),
        "sparse": (
            SparseFeature("places", "weights", F32, 20),
            tf.io.SparseFeature("places", "weights", tf.float32, 20),
        ),
        "plane": (
            SparseFeature(["places", "places"], "weights", F32, [20, 30]),
            tf.io.SparseFeature(["places", "places"], "weights", tf.float32, [20, 30]),
        ),
        "values": (ragged(I64), theirs_ragged(tf.int64)),
        "rows": (
            ragged(I64, "values", [ragged.RowLengths("lengths")]),
            theirs_ragged(tf.int64, "values", [theirs_ragged.RowLengths("lengths")]),
        ),
        "more": (
            ragged(I64, "values", [ragged.UniformRowLength(1), ragged.RowSplits("splits")], validate=True),
            theirs_ragged(
                tf.int64,
                "values",
                [theirs_ragged.UniformRowLength(1), theirs_ragged.RowSplits("splits")],
                validate=True,
            ),
        ),
    }
    ours = parse_batch(records, {name: pair[0] for name, pair in specs.items()})
    theirs = tf.io.parse_example(records, {name: pair[1] for name, pair in specs.items()})
    for name in specs:
        check(ours[name], theirs[name])


@pytest.mark.parametrize("num_records", [3, NUM_RECORDS])
def test_sequences_become_what_tensorflow_makes_of_them(num_records: int) -> None:
    random = rng()
    records: list[bytes] = []
    for _ in range(num_records):
        steps = [some_values(random) for _ in range(random.integers(0, 6))]
        context = {"fixed": [1, 2, 3], "words": [b"a"] * random.integers(1, 3)}
        lists = {name: [step[name] for step in steps] for name in ("fixed", "values", "lengths", "names", "weights")}
        ours = encode_sequence_example(context, lists)
        context_features = {
            "fixed": tf.train.Feature(int64_list=tf.train.Int64List(value=context["fixed"])),
            "words": tf.train.Feature(bytes_list=tf.train.BytesList(value=context["words"])),
        }
        theirs = tf.train.SequenceExample(
            context=tf.train.Features(feature=context_features),
            feature_lists=tf.train.FeatureLists(
                feature_list={
                    name: tf.train.FeatureList(feature=[feature(value) for value in values])
                    for name, values in lists.items()
                }
            ),
        )
        assert ours == theirs.SerializeToString(deterministic=True)
        decoded = decode_sequence_example(theirs.SerializeToString())
        assert [list(step) for step in decoded[1]["values"]] == [list(step["values"]) for step in steps]
        records.append(ours)
    ragged, theirs_ragged = RaggedFeature, tf.io.RaggedFeature
    found = parse_sequence_batch(
        records,
        {"fixed": FixedLenFeature((3,), I64), "words": VarLenFeature(bytes)},
        {
            "fixed": FixedLenSequenceFeature((3,), I64),
            "names": VarLenFeature(bytes),
            "weights": ragged(F32, row_splits_dtype=I64),
            "rows": ragged(I64, "values", [ragged.RowLengths("lengths")]),
            "missing": FixedLenSequenceFeature((), F32, True),
        },
    )
    expected = tf.io.parse_sequence_example(
        records,
        {"fixed": tf.io.FixedLenFeature((3,), tf.int64), "words": tf.io.VarLenFeature(tf.string)},
        {
            "fixed": tf.io.FixedLenSequenceFeature((3,), tf.int64),
            "names": tf.io.VarLenFeature(tf.string),
            "weights": theirs_ragged(tf.float32, row_splits_dtype=tf.int64),
            "rows": theirs_ragged(tf.int64, "values", [theirs_ragged.RowLengths("lengths")]),
            "missing": tf.io.FixedLenSequenceFeature((), tf.float32, True),
        },
    )
    for ours_of, theirs_of in zip(found, expected, strict=True):
        assert ours_of.keys() == theirs_of.keys()
        for name in ours_of:
            check(ours_of[name], theirs_of[name])


def test_files_go_both_ways(tmp_path: Path) -> None:
    random = rng()
    records = [encode_example(some_values(random)) for _ in range(NUM_RECORDS)]
    theirs, ours = str(tmp_path / "theirs.tfrec"), tmp_path / "ours.tfrec"
    with tf.io.TFRecordWriter(theirs) as writer:
        for record in records:
            writer.write(record)
    ours.write_bytes(b"".join(map(frame, records)))
    assert Path(theirs).read_bytes() == ours.read_bytes()
    assert list(RecordSource(theirs)) == records
    assert [record.numpy() for record in tf.data.TFRecordDataset(str(ours))] == records


@pytest.mark.parametrize("compression", ["GZIP", "ZLIB"])
def test_compressed_files_go_both_ways(tmp_path: Path, compression: str) -> None:
    random = rng()
    records = [encode_example(some_values(random)) for _ in range(NUM_RECORDS)]
    theirs, ours = str(tmp_path / "theirs.tfrec"), str(tmp_path / "ours.tfrec")
    with tf.io.TFRecordWriter(theirs, tf.io.TFRecordOptions(compression_type=compression)) as writer:
        for record in records:
            writer.write(record)
    assert find_compression(theirs) == compression
    assert list(CompressedRecords(theirs)) == records
    pack = gzip.compress if compression == "GZIP" else zlib.compress
    Path(ours).write_bytes(pack(b"".join(map(frame, records))))
    assert [record.numpy() for record in tf.data.TFRecordDataset(ours, compression_type=compression)] == records
