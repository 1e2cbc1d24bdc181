"""What the assignment on distribution strategies asks: all of a distributed training loop, by hand.

After the assignment of the course "Custom and Distributed Training with TensorFlow": a model class with a frozen
feature extractor, a loss over the global batch, a training and a test step for a replica and for all of them, metrics
for each epoch, training that ends early, and a saved model that predicts what the trained one did. The assignment
trains on photographs of flowers of 102 kinds; here they are drawn, and fewer.

    python examples/labs/assignment.py --simulate 2
"""

import argparse
import tempfile

from drawn_pictures import draw_pictures

import lockstep
from lockstep.data import Batches
from lockstep.strategies import MirroredStrategy, ReduceOp, simulate_devices
from lockstep.training import load_model, save_model

# isort: split
import keras  # after lockstep, which has it run on JAX
import numpy as np

NUM_CLASSES = 12
NUM_PIXELS = 32


def parse_arguments():
    parser = argparse.ArgumentParser(description="All of a distributed training loop, by hand.")
    parser.add_argument("--rows", type=int, default=2400, help="how many flowers to draw")
    parser.add_argument("--epochs", type=int, default=10, help="at the most")
    parser.add_argument("--batch-size", type=int, default=32, help="images of a step for each replica")
    parser.add_argument("--accuracy", type=float, default=0.9, help="validation accuracy at which training ends")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
    parser.add_argument("--folder", help="where the model goes; a temporary one by default")
    return parser.parse_args()


@keras.saving.register_keras_serializable("lockstep_examples")
class FlowerModel(keras.Model):
    """A feature extractor that stays as it is, and a classifier that is trained.

    The extractor is a small net with random filters, so that nothing need be downloaded; one of `keras.applications`
    fits in its place.
    """

    def __init__(self, num_classes, **options):
        super().__init__(**options)
        self.num_classes = num_classes
        self.extractor = keras.Sequential(
            [
                keras.layers.Rescaling(1 / 255),
                keras.layers.Conv2D(64, 5, strides=2, activation="relu"),
                keras.layers.AveragePooling2D(2),
                keras.layers.Conv2D(128, 3, activation="relu"),
                keras.layers.AveragePooling2D(2),
                keras.layers.Flatten(),
            ],
            name="extractor",
        )
        self.extractor.trainable = False
        self.hidden = keras.layers.Dense(64, activation="relu", name="hidden")
        self.classifier = keras.layers.Dense(num_classes, name="classifier")

    def build(self, input_shape):
        self.extractor.build(input_shape)
        self.hidden.build(self.extractor.output_shape)
        self.classifier.build((None, self.hidden.units))

    def call(self, images):
        return self.classifier(self.hidden(self.extractor(images)))

    def get_config(self):
        return {**super().get_config(), "num_classes": self.num_classes}


class Training:
    """The model, its optimizer and metrics, and its steps: for one replica, and for all."""

    def __init__(self, strategy):
        self.strategy = strategy
        with strategy.scope():
            self.model = FlowerModel(NUM_CLASSES)
            self.model.build((None, NUM_PIXELS, NUM_PIXELS, 3))
            self.optimizer = keras.optimizers.Adam(3e-3)
            self.validation_loss = keras.metrics.Mean()
            self.train_accuracy = keras.metrics.SparseCategoricalAccuracy()
            self.validation_accuracy = keras.metrics.SparseCategoricalAccuracy()
        # A loss for each image: how they are averaged is said in compute_loss.
        self.per_image_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def compute_loss(self, labels, logits):
        """A replica's share of the mean loss over the global batch: the shares add up to it."""
        return lockstep.compute_average_loss(self.per_image_loss(labels, logits))

    def train_step(self, images, labels):
        def forward():
            logits = self.model(images, training=True)
            return self.compute_loss(labels, logits), logits

        variables = self.model.trainable_variables  # the extractor's are not among them
        (loss, logits), gradients = lockstep.value_and_grad(forward, variables, has_aux=True)
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        self.train_accuracy.update_state(labels, logits)
        return loss

    def test_step(self, images, labels):
        logits = self.model(images, training=False)
        self.validation_loss.update_state(self.per_image_loss(labels, logits))
        self.validation_accuracy.update_state(labels, logits)

    @lockstep.function
    def distributed_train_step(self, batch):
        return self.strategy.reduce(ReduceOp.SUM, self.strategy.run(self.train_step, args=batch))

    @lockstep.function
    def distributed_test_step(self, batch):
        self.strategy.run(self.test_step, args=batch)

    def run_epoch(self, train_dataset, validation_dataset):
        """Returns the epoch's results by name."""
        metrics = (self.train_accuracy, self.validation_loss, self.validation_accuracy)
        for metric in metrics:
            metric.reset_state()
        losses = [self.distributed_train_step(batch) for batch in train_dataset]
        for batch in validation_dataset:
            self.distributed_test_step(batch)
        names = ("accuracy", "validation loss", "validation accuracy")
        results = {name: float(metric.result()) for name, metric in zip(names, metrics, strict=True)}
        return {"loss": sum(map(float, losses)) / len(losses), **results}


def make_datasets(strategy, *, arguments):
    """Returns four fifths of the flowers to train on, in a new order each epoch, and the rest to validate with."""
    pictures, labels = draw_pictures(arguments.rows, num_classes=NUM_CLASSES, num_pixels=NUM_PIXELS, seed=1)
    numbers = np.random.default_rng(1).permutation(arguments.rows)
    num_train = arguments.rows * 4 // 5
    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync

    def distribute(part, seed=None):
        batches = Batches(
            part,
            batch_size=global_batch_size,
            transform=lambda chosen: (pictures[chosen], labels[chosen]),
            seed=seed,
        )
        return strategy.experimental_distribute_dataset(batches)

    return distribute(numbers[:num_train], seed=1), distribute(numbers[num_train:])


def train(arguments, folder):
    strategy = MirroredStrategy()
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    keras.utils.set_random_seed(1)
    train_dataset, validation_dataset = make_datasets(strategy, arguments=arguments)
    training = Training(strategy)
    for epoch in range(arguments.epochs):
        results = training.run_epoch(train_dataset, validation_dataset)
        print(f"epoch {epoch + 1}: " + ", ".join(f"{name} {value:.4f}" for name, value in results.items()))
        if results["validation accuracy"] >= arguments.accuracy:
            print(f"ended after {epoch + 1} of {arguments.epochs} epochs: {arguments.accuracy:.0%} are told apart")
            break

    saved = save_model(training.model, folder)
    pictures, _ = draw_pictures(100, num_classes=NUM_CLASSES, num_pixels=NUM_PIXELS, seed=2)
    expected = training.model.predict(pictures, verbose=0)
    found = load_model(saved).predict(pictures, verbose=0)
    print(f"saved and loaded: predictions of {len(pictures)} flowers differ by {np.abs(found - expected).max():.0e}")


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, arguments.folder or folder)


if __name__ == "__main__":
    main()
