"""Trains a small net on a part of Fashion-MNIST: a plain Keras script whose flags a search chooses.

Run it alone with `python examples/tuning/train.py`, and search its flags as README.md beside it says. The script knows
nothing of searches: they pass flags, and read the accuracy in the files that the callback `TensorBoard` writes.
"""

import argparse
import logging
import sys

from lockstep.data.sources import open_source
from lockstep.errors import LockstepError
from lockstep.topology import Topology
from lockstep.training import Progress, TensorBoard, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX

NUM_VALIDATION = 2000


def parse_arguments():
    parser = argparse.ArgumentParser(description="Trains a small net on a part of Fashion-MNIST.")
    parser.add_argument(
        "--data", default="fashion-mnist", help="name of the data set, or digits, which is always there"
    )
    parser.add_argument("--num-images", type=int, default=4000, help="images to train with")
    parser.add_argument("--epochs", type=int, default=4)
    # What is searched:
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--units", type=int, default=64, help="units of each hidden layer")
    parser.add_argument("--layers", type=int, default=1, help="number of hidden layers")
    parser.add_argument("--dropout", type=float, default=0.2)
    parser.add_argument("--optimizer", choices=("adam", "sgd", "rmsprop"), default="adam")
    return parser.parse_args()


def read_data(name, *, num_images):
    """Returns the images and labels to train with, for validation, which the search looks at, and for the test."""
    train, test = (open_source(name).splits()[split] for split in ("train", "test"))
    num_validation = min(NUM_VALIDATION, len(train.labels) // 4)
    first = (train.images[num_validation:][:num_images], train.labels[num_validation:][:num_images])
    return first, (train.images[:num_validation], train.labels[:num_validation]), (test.images, test.labels)


def build_model(shape, arguments):
    layers = [keras.Input(shape), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    for _ in range(arguments.layers):
        layers += [keras.layers.Dense(arguments.units, activation="relu"), keras.layers.Dropout(arguments.dropout)]
    model = keras.Sequential([*layers, keras.layers.Dense(10, activation="softmax")])
    optimizer = keras.optimizers.get({"class_name": arguments.optimizer, "config": {}})
    optimizer.learning_rate = arguments.learning_rate
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(arguments):
    keras.utils.set_random_seed(1)
    training, validation, test = read_data(arguments.data, num_images=arguments.num_images)
    model = build_model(training[0].shape[1:], arguments)
    outputs = Topology.from_env().outputs
    callbacks = [Progress(), *([TensorBoard(outputs.tensorboard_dir)] if outputs.tensorboard_dir else [])]
    options = {"epochs": arguments.epochs, "batch_size": arguments.batch_size, "verbose": 0}
    model.fit(*training, validation_data=validation, callbacks=callbacks, **options)
    accuracy = {
        name: model.evaluate(*part, verbose=0)[1] for name, part in (("validation", validation), ("test", test))
    }
    print(f"validation accuracy {accuracy['validation']:.4f}, test accuracy {accuracy['test']:.4f}")
    if outputs.model_dir:
        save_model(model, outputs.model_dir)


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
