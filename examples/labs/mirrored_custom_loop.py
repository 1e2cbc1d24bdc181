"""Several devices of one machine and a loop of one's own, seen from a replica.

After the lab on `MirroredStrategy` over several GPUs of the course "Custom and Distributed Training with TensorFlow".
Where the lab has a machine with one GPU pretend to have more, `--simulate` makes virtual devices.

    python examples/labs/mirrored_custom_loop.py --simulate 2
    python examples/labs/mirrored_custom_loop.py --devices gpu:0 gpu:1
"""

import argparse

import lockstep
from lockstep.data.sources import SOURCES, open_source
from lockstep.strategies import MirroredStrategy, simulate_devices

# isort: split
import jax.numpy as jnp
import keras  # after lockstep, which has it run on JAX


def parse_arguments():
    parser = argparse.ArgumentParser(description="Several devices of one machine and a loop of one's own.")
    parser.add_argument("--data", choices=SOURCES, default="fashion-mnist", help="digits need no download")
    parser.add_argument("--rows", type=int, help="train on so many images alone")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="images of a step for each replica")
    parser.add_argument("--devices", nargs="+", metavar="NAME", help="such as gpu:0 gpu:1; all by default")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
    return parser.parse_args()


def build_model():
    return keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Reshape((28, 28, 1)),
            keras.layers.Conv2D(16, 3, activation="relu"),
            keras.layers.BatchNormalization(),  # over its replica's images alone; synchronized=True for those of all
            keras.layers.MaxPooling2D(),
            keras.layers.Dropout(0.2),  # each replica draws a mask of its own
            keras.layers.Flatten(),
            keras.layers.Dense(10),
        ]
    )


def cut_into_batches(split, *, batch_size, num_rows=None):
    """Returns a list of global batches: that is data set enough."""
    images, labels = split.images[:num_rows], split.labels[:num_rows]
    starts = range(0, len(images), batch_size)
    return [(images[start : start + batch_size], labels[start : start + batch_size]) for start in starts]


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    strategy = MirroredStrategy(arguments.devices)
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    keras.utils.set_random_seed(1)

    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync
    splits = open_source(arguments.data).splits()
    train_batches = cut_into_batches(splits["train"], batch_size=global_batch_size, num_rows=arguments.rows)
    test_batches = cut_into_batches(splits["test"], batch_size=global_batch_size)
    train_dataset = strategy.experimental_distribute_dataset(train_batches)
    test_dataset = strategy.experimental_distribute_dataset(test_batches)

    with strategy.scope():  # whatever has variables is made here
        model = build_model()
        optimizer = keras.optimizers.Adam()
        train_accuracy = keras.metrics.SparseCategoricalAccuracy()
        test_accuracy = keras.metrics.SparseCategoricalAccuracy()
    per_image_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_step(images, labels):
        """One replica's step; all arrays in it are this replica's own."""
        replica = lockstep.get_replica_context()
        # The last batch of an epoch may be divided over fewer replicas than there are.
        num_images = len(images) * replica.num_replicas_in_sync

        def compute_loss():
            logits = model(images, training=True)
            return jnp.sum(per_image_loss(labels, logits)) / num_images, logits

        variables = model.trainable_variables
        (loss, logits), gradients = lockstep.value_and_grad(compute_loss, variables, has_aux=True)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))  # it sums them over the replicas first
        train_accuracy.update_state(labels, logits)
        return {"loss": loss, "replica": replica.replica_id_in_sync_group, "images": len(images)}

    def test_step(images, labels):
        test_accuracy.update_state(labels, model(images, training=False))

    @lockstep.function
    def distributed_train_step(batch):
        per_replica = strategy.run(train_step, args=batch)
        return strategy.reduce("SUM", per_replica["loss"]), per_replica

    @lockstep.function
    def distributed_test_step(batch):
        strategy.run(test_step, args=batch)

    for epoch in range(arguments.epochs):
        train_accuracy.reset_state()
        test_accuracy.reset_state()
        losses = []
        for batch in train_dataset:
            loss, per_replica = distributed_train_step(batch)
            if not losses and epoch == 0:  # what the replicas returned, before it was added up
                for result in strategy.experimental_local_results(per_replica):
                    replica, images, part = (result[name] for name in ("replica", "images", "loss"))
                    print(f"first step, replica {int(replica)}: {int(images)} images, {float(part):.4f} of the loss")
                print(f"first step, all replicas: loss {float(loss):.4f}")
            losses.append(loss)
        for batch in test_dataset:
            distributed_test_step(batch)
        print(
            f"epoch {epoch + 1}: loss {sum(map(float, losses)) / len(losses):.4f}, "
            f"accuracy {float(train_accuracy.result()):.4f}, test accuracy {float(test_accuracy.result()):.4f}"
        )


if __name__ == "__main__":
    main()
