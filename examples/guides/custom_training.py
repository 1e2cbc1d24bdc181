"""A training loop of one's own: the guide "Custom training with tf.distribute.Strategy", re-told.

Each replica runs `train_step` on its share of the batch; the optimizer sums the gradients of all replicas before it
updates its copy of the variables. The loop itself stays in Python, and what it calls is one compiled program a batch.

    python examples/guides/custom_training.py
    python examples/guides/custom_training.py --simulate 4
"""

import argparse
import tempfile

import lockstep
from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.data import Batches
from lockstep.data.sources import SOURCES, open_source
from lockstep.strategies import MirroredStrategy, OneDeviceStrategy, ReduceOp, simulate_devices

# isort: split
import keras  # after lockstep, which has it run on JAX
import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(description="A training loop of one's own over a strategy's replicas.")
    parser.add_argument("--data", choices=SOURCES, default="fashion-mnist", help="digits need no download")
    parser.add_argument("--rows", type=int, help="train on so many images alone")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=64, help="images of a step for each replica")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
    parser.add_argument("--folder", help="where checkpoints go; a temporary one by default")
    return parser.parse_args()


def build_model():
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dense(64, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam())
    model.optimizer.build(model.trainable_variables)  # so that it is there when a checkpoint is restored
    return model


def to_arrays(examples):
    """Makes a batch of what was read, one dict for each image."""
    return tuple(np.stack([example[name] for example in examples]) for name in ("image", "label"))


class Loop:
    """A model, what is measured of it, and the two steps over the replicas.

    The loss: each image's own, summed over a replica's share and divided by the images of the global batch. Replicas
    add up, so that their sum is the mean over the global batch. (A mean over each share would not do: the sum of means
    is too large, and shares need not be alike.)
    """

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = build_model()
            self.test_loss = keras.metrics.Mean()
            self.train_accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.test_accuracy = keras.metrics.SparseCategoricalAccuracy()
        self.per_image_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(self, images, labels):
        """What one replica does."""

        def compute_loss():
            logits = self.model(images, training=True)
            loss = lockstep.compute_average_loss(self.per_image_loss(labels, logits))
            if self.model.losses:  # of regularizers: each replica adds its part
                loss += lockstep.scale_regularization_loss(self.model.losses)
            return loss, logits

        variables = self.model.trainable_variables
        (loss, logits), gradients = lockstep.value_and_grad(compute_loss, variables, has_aux=True)
        self.model.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.train_accuracy.update_state(labels, logits)
        return loss

    def test_step(self, images, labels):
        logits = self.model(images, training=False)
        self.test_loss.update_state(self.per_image_loss(labels, logits))
        self.test_accuracy.update_state(labels, logits)

    @lockstep.function
    def distributed_train_step(self, batch):
        losses = self.strategy.run(self.train_step, args=batch)
        return self.strategy.reduce(ReduceOp.SUM, losses)

    @lockstep.function
    def distributed_test_step(self, batch):
        self.strategy.run(self.test_step, args=batch)

    def train_epoch(self, dataset):
        """Returns the mean of the steps' losses."""
        self.train_accuracy.reset_state()
        # The losses are added up on the devices: asking for each as a number would wait for each step.
        total = sum(self.distributed_train_step(batch) for batch in dataset)
        return float(total) / len(dataset)

    def evaluate(self, dataset):
        self.test_loss.reset_state()
        self.test_accuracy.reset_state()
        for batch in dataset:
            self.distributed_test_step(batch)
        return float(self.test_loss.result()), float(self.test_accuracy.result())


def train(arguments, folder):
    strategy = MirroredStrategy()
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    keras.utils.set_random_seed(1)

    splits = open_source(arguments.data).splits()
    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync
    train_source, test_source = list(splits["train"])[: arguments.rows], list(splits["test"])
    train_batches = Batches(train_source, batch_size=global_batch_size, transform=to_arrays, seed=1)
    test_batches = Batches(test_source, batch_size=global_batch_size, transform=to_arrays)
    # The strategy lays each global batch over its replicas.
    train_dataset = strategy.experimental_distribute_dataset(train_batches)
    test_dataset = strategy.experimental_distribute_dataset(test_batches)

    loop = Loop(strategy)
    with CheckpointDirectory(folder) as checkpoints:
        for epoch in range(arguments.epochs):
            train_loss = loop.train_epoch(train_dataset)
            test_loss, test_accuracy = loop.evaluate(test_dataset)
            print(
                f"epoch {epoch + 1}: loss {train_loss:.4f}, accuracy {float(loop.train_accuracy.result()):.4f}, "
                f"test loss {test_loss:.4f}, test accuracy {test_accuracy:.4f}"
            )
            position = Position(epoch=epoch + 1, batch=0, step=(epoch + 1) * len(train_dataset))
            checkpoints.save(TrainingState.capture(loop.model, position=position))

        # The last checkpoint, into a new model, under another strategy.
        checkpoints.wait()
        restored = Loop(OneDeviceStrategy())
        checkpoints.restore().apply(restored.model)
    dataset = restored.strategy.experimental_distribute_dataset(test_batches)
    test_loss, test_accuracy = restored.evaluate(dataset)
    print(f"restored on one device: test loss {test_loss:.4f}, test accuracy {test_accuracy:.4f}")


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, arguments.folder or folder)


if __name__ == "__main__":
    main()
