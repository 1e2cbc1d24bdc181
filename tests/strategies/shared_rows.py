"""One of the workers of `test_datasets_of_workers`: each has rows of its own, and one has fewer than the other."""

import json
import sys
from pathlib import Path

import keras
import numpy as np

from lockstep.data import Batches, RecordFiles, frame
from lockstep.errors import InvalidInputError
from lockstep.strategies import AutoShardPolicy, InputOptions, from_env

FILES = {"even": [7, 3], "empty": [6, 0]}
"""Records of each worker's file."""


def write_files(folder):
    """Writes one file a worker; a record is a number, which its features follow from."""
    number = 0
    for name, sizes in FILES.items():
        for index, size in enumerate(sizes):
            records = [str(number + record).encode() for record in range(size)]
            number += size
            path = folder / f"{name}-{index:05d}-of-{len(sizes):05d}.tfrec"
            path.write_bytes(b"".join(map(frame, records)))


def decode(records):
    numbers = np.array([int(record) for record in records], np.float32)
    features = np.stack([np.sin(numbers), np.cos(2 * numbers), numbers / 10], axis=1)
    return features, (numbers % 3).astype(np.int32)


def make_model():
    """Batch statistics, which any row too many or too few would change."""
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(5, use_bias=False),
            keras.layers.BatchNormalization(),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2), loss, metrics=["accuracy"])
    return model


def files_of(folder, name, context):
    """Batches of four records over both workers; each opens its own file."""
    source = RecordFiles(f"{folder}/{name}-*.tfrec")
    return Batches(source, batch_size=4, transform=decode, input_context=context, policy=AutoShardPolicy.FILE)


def fit(model, training, evaluation):
    losses = model.fit(training, epochs=2, shuffle=False, verbose=0).history["loss"]
    return losses, model.evaluate(evaluation, verbose=0)


def laid_out(strategy, dataset):
    """Of each batch: over how many replicas it lies, and its rows."""
    return [[batch["rows"].num_replicas, np.asarray(strategy.gather(batch["rows"], 0)).tolist()] for batch in dataset]


def replica_id(context):
    return np.array([context.replica_id_in_sync_group])


def random_shares(rank):
    """A worker's batches, of any number and sizes: rows of two 64-bit columns, numbered through all workers."""
    generator = np.random.default_rng(rank)
    sizes = generator.integers(0, 6, generator.integers(0, 7))
    starts = np.cumsum([100 * rank, *sizes])
    return [np.arange(start, start + size) for start, size in zip(starts, sizes, strict=False)]


def read_random_shares(rank):
    strategy = from_env()
    own = [{"rows": rows, "image": np.repeat(rows, 6).reshape(-1, 2, 3) / 8} for rows in random_shares(rank)]
    off = InputOptions(auto_shard_policy=AutoShardPolicy.OFF)
    found = []
    for batch in strategy.experimental_distribute_dataset(own, off):
        rows, image = (np.asarray(strategy.gather(batch[name], 0)) for name in ("rows", "image"))
        np.testing.assert_array_equal(image, np.repeat(rows, 6).reshape(-1, 2, 3) / 8)
        found.append([batch["rows"].num_replicas, rows.tolist()])
    print(json.dumps(found))


def main(folder, rank):
    keras.utils.set_random_seed(4)
    strategy = from_env()
    context = strategy.input_context
    off = InputOptions(auto_shard_policy=AutoShardPolicy.OFF)
    # A row says whose it is.
    own = [{"rows": np.arange(3.0) + 3 * number + 100 * rank, "none": None} for number in range((5, 2)[rank])]
    found = {
        "function": laid_out(strategy, strategy.distribute_datasets_from_function(lambda _: own)),
        "off": laid_out(strategy, strategy.experimental_distribute_dataset(own, off)),
        "one has none": laid_out(strategy, strategy.experimental_distribute_dataset(own if rank else [], off)),
        "none has any": laid_out(strategy, strategy.experimental_distribute_dataset([], off)),
        "same": laid_out(
            strategy, strategy.experimental_distribute_dataset([{"rows": np.arange(6)}, {"rows": np.arange(8)}])
        ),
        "values": np.asarray(
            strategy.gather(strategy.experimental_distribute_values_from_function(replica_id), 0)
        ).tolist(),
    }
    try:
        list(strategy.experimental_distribute_dataset([np.zeros(2, ("f4", "i4")[rank])], off))
    except InvalidInputError as error:
        found["unlike"] = str(error)
    with strategy.scope():
        model = make_model()
    found["fit"] = fit(model, files_of(folder, "even", context), files_of(folder, "empty", context))
    found["steps"] = [len(files_of(folder, name, context)) for name in FILES]
    found["weights"] = [np.asarray(variable).tolist() for variable in model.weights]
    print(json.dumps(found))


if __name__ == "__main__":
    if sys.argv[1] == "random":
        read_random_shares(int(sys.argv[2]))
    else:
        main(Path(sys.argv[1]), int(sys.argv[2]))
