"""Data sets as TFRecord files of ``tf.train.Example`` in buckets: packing, verifying, reading in a repeatable order.

`Batches` and `Dataset` are inputs for Keras's ``fit``. They, and the readers behind them, are imported on first use,
because they need Grain and Keras, and packing and inspecting files need neither.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from lockstep.data.examples.example import decode_example, encode_example
from lockstep.data.examples.feature import AbstractFeature
from lockstep.data.examples.features import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    RawFeature,
    SparseFeature,
    VarLenFeature,
)
from lockstep.data.examples.parsing import ExampleParser, parse_batch, parse_example
from lockstep.data.examples.ragged import RaggedArray, SparseArray
from lockstep.data.examples.ragged_feature import RaggedFeature
from lockstep.data.examples.sequences import (
    ParsedSequences,
    SequenceExampleParser,
    decode_sequence_example,
    encode_sequence_example,
    parse_sequence_batch,
)
from lockstep.data.examples.single import parse_single_example
from lockstep.data.files.framing import frame, masked_crc32c, read_records
from lockstep.data.files.record_batch import RecordBatch
from lockstep.data.files.shards import ShardName, find_shards
from lockstep.data.files.skipping import Skip
from lockstep.data.packing.manifest import Manifest, Shard, Skipped, read_manifest
from lockstep.data.packing.packer import Packed, pack
from lockstep.data.reading.order import epoch_order
from lockstep.data.verification import verify

if TYPE_CHECKING:
    from lockstep.data.dataset.dataset import Dataset, TFRecordDataset
    from lockstep.data.dataset.options import DistributeOptions, Options
    from lockstep.data.dataset.plan import AUTOTUNE, INFINITE_CARDINALITY, UNKNOWN_CARDINALITY
    from lockstep.data.dataset.structure import TensorSpec
    from lockstep.data.files.array_record import ArrayRecordSource
    from lockstep.data.files.compressed import CompressedRecords
    from lockstep.data.files.compression import read_compressed
    from lockstep.data.files.opening import records
    from lockstep.data.files.record_source import RecordFiles, RecordSource
    from lockstep.data.reading.batches import Batches
    from lockstep.data.reading.randomness import RecordRandom

_LAZY: Final = {
    "AUTOTUNE": "lockstep.data.dataset.plan",
    "ArrayRecordSource": "lockstep.data.files.array_record",
    "Batches": "lockstep.data.reading.batches",
    "CompressedRecords": "lockstep.data.files.compressed",
    "Dataset": "lockstep.data.dataset.dataset",
    "DistributeOptions": "lockstep.data.dataset.options",
    "INFINITE_CARDINALITY": "lockstep.data.dataset.plan",
    "Options": "lockstep.data.dataset.options",
    "RecordFiles": "lockstep.data.files.record_source",
    "RecordRandom": "lockstep.data.reading.randomness",
    "RecordSource": "lockstep.data.files.record_source",
    "TFRecordDataset": "lockstep.data.dataset.dataset",
    "TensorSpec": "lockstep.data.dataset.structure",
    "UNKNOWN_CARDINALITY": "lockstep.data.dataset.plan",
    "read_compressed": "lockstep.data.files.compression",
    "records": "lockstep.data.files.opening",
}

__all__ = [
    "AUTOTUNE",
    "INFINITE_CARDINALITY",
    "UNKNOWN_CARDINALITY",
    "AbstractFeature",
    "ArrayRecordSource",
    "Batches",
    "CompressedRecords",
    "Dataset",
    "DistributeOptions",
    "ExampleParser",
    "FixedLenFeature",
    "FixedLenSequenceFeature",
    "Manifest",
    "Options",
    "Packed",
    "ParsedSequences",
    "RaggedArray",
    "RaggedFeature",
    "RawFeature",
    "RecordBatch",
    "RecordFiles",
    "RecordRandom",
    "RecordSource",
    "SequenceExampleParser",
    "Shard",
    "ShardName",
    "Skip",
    "Skipped",
    "SparseArray",
    "SparseFeature",
    "TFRecordDataset",
    "TensorSpec",
    "VarLenFeature",
    "decode_example",
    "decode_sequence_example",
    "encode_example",
    "encode_sequence_example",
    "epoch_order",
    "find_shards",
    "frame",
    "masked_crc32c",
    "pack",
    "parse_batch",
    "parse_example",
    "parse_sequence_batch",
    "parse_single_example",
    "read_compressed",
    "read_manifest",
    "read_records",
    "records",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'lockstep.data' has no attribute {name!r}")
