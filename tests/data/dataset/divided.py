"""One of the processes of `test_training`: takes a data set of files apart with the other one, and trains on it."""

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Final

import keras
import numpy as np

from lockstep.data import Options, TFRecordDataset, frame
from lockstep.strategies import AutoShardPolicy, from_env

SIZES: Final = (5, 4, 3, 6)
NUM_RECORDS: Final = sum(SIZES)


def write_files(folder):
    ends = np.cumsum([0, *SIZES]).tolist()
    for file, (start, end) in enumerate(pairwise(ends)):
        content = b"".join(frame(f"{file}:{number}".encode()) for number in range(start, end))
        (Path(folder) / f"part-{file}").write_bytes(content)


def main(folder, *policies):
    strategy = from_env()
    print(json.dumps({policy: divide(strategy, folder, policy) for policy in policies}), flush=True)


def divide(strategy, folder, policy):
    """Returns what this process read of the data set, and what came of a training on it."""
    opened = set()

    def parse(record):
        file, number = map(int, record.split(b":"))
        opened.add(file)
        return np.int32(number)

    options = Options()
    options.experimental_distribute.auto_shard_policy = AutoShardPolicy[policy]
    files = [str(Path(folder) / f"part-{file}") for file in range(len(SIZES))]
    numbers = TFRecordDataset(files).map(parse).batch(6).with_options(options)
    batches = [
        np.asarray(strategy.gather(batch, axis=0)).tolist()
        for batch in strategy.experimental_distribute_dataset(numbers)
    ]

    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile(optimizer=keras.optimizers.SGD(0.001), loss="mse")
    steps = []
    note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    data = numbers.map(lambda number: (number[:, None] / np.float32(20), number[:, None] / np.float32(10)))
    model.fit(data, epochs=1, verbose=0, callbacks=[note])
    weights = np.concatenate([np.ravel(variable) for variable in model.trainable_variables]).tolist()
    return {"batches": batches, "weights": weights, "opened": sorted(opened), "num_steps": len(steps)}


if __name__ == "__main__":
    main(*sys.argv[1:])
