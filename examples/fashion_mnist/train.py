"""Trains a small convolutional net on packed images of 28 x 28 pixels and 10 classes: a plain Keras script.

Pack the data with `lockstep data pack fashion-mnist BUCKET`, then run it

- alone: `python examples/fashion_mnist/train.py --data BUCKET`;
- in several processes: the same in each with `--strategy multi_worker`, and TF_CONFIG set;
- as a managed job: `lockstep submit NAME --package-path examples/fashion_mnist --module-name train
  --config examples/fashion_mnist/config.yaml -- --data BUCKET`.
"""

import argparse
import logging
import sys

from lockstep.data import (
    Batches,
    FixedLenFeature,
    RawFeature,
    RecordSource,
    ShardName,
    find_shards,
    parse_batch,
    read_manifest,
)
from lockstep.errors import LockstepError
from lockstep.storage import join_url
from lockstep.strategies import STRATEGY_NAMES, from_env
from lockstep.topology import Outputs, Topology
from lockstep.training import BackupAndRestore, Progress, TensorBoard, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX

FEATURES = {"image": RawFeature((28, 28)), "label": FixedLenFeature((), "int64")}


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a small convolutional net on packed images.")
    parser.add_argument("--data", required=True, help="bucket with packed data, or a pattern of its training files")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=250, help="images of a step, over all replicas")
    parser.add_argument("--learning-rate", type=float, default=5e-3)
    parser.add_argument("--strategy", choices=STRATEGY_NAMES, default="auto")
    parser.add_argument("--job-dir", help="bucket for model, checkpoints and logs; a job has its own")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def training_files(data):
    """Returns the pattern of the training files: of the data set that was packed last, where there are several."""
    if "*" in data:
        return data
    urls = find_shards(join_url(data, "*-train-*.tfrec"))
    names = {ShardName.parse(url).data_set.removesuffix("-train") for url in urls}
    if len(names) > 1:
        names = {max(names, key=lambda name: read_manifest(data, name=name, split="train").created)}
    return join_url(data, f"{names.pop()}-train-*.tfrec")


def output_urls(job_dir):
    """Returns where results go: what the job says, then folders of --job-dir, then nowhere."""
    outputs = Topology.from_env().outputs
    if not job_dir:
        return outputs
    return Outputs(
        model_dir=outputs.model_dir or join_url(job_dir, "model"),
        checkpoint_dir=outputs.checkpoint_dir or join_url(job_dir, "checkpoints"),
        tensorboard_dir=outputs.tensorboard_dir or join_url(job_dir, "logs"),
    )


def to_arrays(records):
    arrays = parse_batch(records, FEATURES)
    return arrays["image"], arrays["label"]


def make_batches(files, *, strategy, batch_size, seed=None):
    return Batches(
        RecordSource(files),
        batch_size=batch_size,
        transform=to_arrays,
        seed=seed,
        input_context=strategy.input_context,
    )


def build_model(*, learning_rate, num_steps):
    """Builds a net that takes pixels as they are, 0 to 255, so that whoever asks it needs to prepare nothing."""
    model = keras.Sequential(
        [
            keras.Input((28, 28), dtype="uint8", name="image"),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(32, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Conv2D(64, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10, activation="softmax"),
        ]
    )
    schedule = keras.optimizers.schedules.CosineDecay(learning_rate, num_steps)
    model.compile(keras.optimizers.Adam(schedule), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(arguments):
    strategy = from_env(arguments.strategy)  # before the first computation
    keras.utils.set_random_seed(arguments.seed)
    outputs = output_urls(arguments.job_dir)
    train_files = training_files(arguments.data)
    options = {"strategy": strategy, "batch_size": arguments.batch_size}
    train_batches = make_batches(train_files, seed=arguments.seed, **options)
    test_batches = make_batches(train_files.replace("-train-", "-test-"), **options)

    with strategy.scope():
        num_steps = arguments.epochs * len(train_batches)
        model = build_model(learning_rate=arguments.learning_rate, num_steps=num_steps)

    callbacks = [Progress()]
    if outputs.checkpoint_dir:
        callbacks.append(BackupAndRestore(outputs.checkpoint_dir, save_freq=100))
    if outputs.tensorboard_dir:
        callbacks.append(TensorBoard(outputs.tensorboard_dir))
    model.fit(train_batches, epochs=arguments.epochs, validation_data=test_batches, callbacks=callbacks, verbose=0)

    results = model.evaluate(test_batches, verbose=0, return_dict=True)
    saved = save_model(model, outputs.model_dir) if outputs.model_dir else "nowhere: name a --job-dir to keep it"
    if strategy.is_chief:
        print(f"test accuracy {results['accuracy']:.4f}, test loss {results['loss']:.4f}")
        print(f"model saved: {saved}")


def main():
    # Keras has set up logging when it was imported; a job's log wants plain lines.
    logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout, force=True)
    logging.getLogger("lockstep").setLevel(logging.INFO)
    arguments = parse_arguments()
    try:
        train(arguments)
    except LockstepError as error:
        print(f"train.py: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
