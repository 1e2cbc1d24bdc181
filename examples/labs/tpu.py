"""`TPUStrategy`: flowers from sharded TFRecord files, and a loop of one's own with training and test steps.

After the lab on TPUs of the course "Custom and Distributed Training with TensorFlow". On a TPU VM it runs on the cores
of the slice: nothing has to be found, connected or initialized first. Elsewhere `--simulate 8` has virtual devices
stand in for them, and says so; `lockstep plan examples/labs/tpu.py --on v5e:2x4` compiles its step for a slice that is
not there.

    python examples/labs/tpu.py --simulate 8
    python examples/labs/tpu.py --data gs://BUCKET/flowers      # what `lockstep.data.pack` wrote: see pack_flowers
"""

import argparse
import tempfile

from drawn_pictures import draw_pictures

import lockstep
from lockstep.data import Batches, FixedLenFeature, RawFeature, RecordFiles, pack, parse_batch
from lockstep.storage import join_url
from lockstep.strategies import AutoShardPolicy, TPUStrategy, simulate_devices
from lockstep.training import save_model

# isort: split
import keras  # after lockstep, which has it run on JAX

CLASSES = ("daisy", "dandelion", "rose", "sunflower", "tulip")
NUM_PIXELS = 32
FEATURES = {"image": RawFeature((NUM_PIXELS, NUM_PIXELS, 3)), "label": FixedLenFeature((), "int64")}


def parse_arguments():
    parser = argparse.ArgumentParser(description="TPUStrategy, TFRecord files, and a loop of one's own.")
    parser.add_argument("--data", help="folder or bucket with packed flowers; drawn ones by default")
    parser.add_argument("--rows", type=int, default=2000, help="how many flowers to draw")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=16, help="images of a step for each core")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
    parser.add_argument("--folder", help="where the model goes; it is not kept by default")
    return parser.parse_args()


def pack_flowers(bucket, *, num_pictures):
    """Writes the records once: 4 files to train on and 2 to test on, which several hosts may divide among them."""
    for split, seed, count in (("train", 1, num_pictures), ("test", 2, num_pictures // 5)):
        pictures, labels = draw_pictures(count, num_classes=len(CLASSES), num_pixels=NUM_PIXELS, seed=seed)
        examples = [{"image": picture, "label": label} for picture, label in zip(pictures, labels, strict=True)]
        num_shards = 4 if split == "train" else 2
        pack(examples, bucket, name="flowers", split=split, num_shards=num_shards, features=FEATURES, origin="drawn")


def read_flowers(strategy, bucket, *, split, batch_size, seed=None):
    def to_arrays(records):
        arrays = parse_batch(records, FEATURES)
        return arrays["image"], arrays["label"]

    batches = Batches(
        RecordFiles(join_url(bucket, f"flowers-{split}-*.tfrec")),
        batch_size=batch_size,
        transform=to_arrays,
        seed=seed,
        policy=AutoShardPolicy.AUTO,  # each host reads files of its own, where there are enough
        input_context=strategy.input_context,
    )
    return strategy.experimental_distribute_dataset(batches)


def build_model():
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((NUM_PIXELS, NUM_PIXELS, 3)),
            layers.Rescaling(1 / 255),
            layers.Conv2D(16, 3, strides=2, activation="relu"),
            layers.Conv2D(32, 3, strides=2, activation="relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(64, activation="relu"),
            layers.Dense(len(CLASSES)),
        ]
    )


def make_steps(strategy):
    """Returns the model, its metrics by name, and the compiled training and test step."""
    with strategy.scope():
        model = build_model()
        optimizer = keras.optimizers.Adam(3e-3)
        metrics = {
            "loss": keras.metrics.Mean(),
            "accuracy": keras.metrics.SparseCategoricalAccuracy(),
            "test_loss": keras.metrics.Mean(),
            "test_accuracy": keras.metrics.SparseCategoricalAccuracy(),
        }
    per_image_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def train_core(images, labels):
        def compute_loss():
            logits = model(images, training=True)
            losses = per_image_loss(labels, logits)
            return lockstep.compute_average_loss(losses), (losses, logits)

        variables = model.trainable_variables
        (_, (losses, logits)), gradients = lockstep.value_and_grad(compute_loss, variables, has_aux=True)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        metrics["loss"].update_state(losses)
        metrics["accuracy"].update_state(labels, logits)

    def test_core(images, labels):
        logits = model(images, training=False)
        metrics["test_loss"].update_state(per_image_loss(labels, logits))
        metrics["test_accuracy"].update_state(labels, logits)

    @lockstep.function
    def train_step(batch):
        strategy.run(train_core, args=batch)

    @lockstep.function
    def test_step(batch):
        strategy.run(test_core, args=batch)

    return model, metrics, train_step, test_step


def train(arguments, folder):
    strategy = TPUStrategy()
    print(strategy.describe())
    keras.utils.set_random_seed(1)
    bucket = arguments.data or join_url(folder, "records")
    if not arguments.data:
        pack_flowers(bucket, num_pictures=arguments.rows)
    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync
    train_dataset = read_flowers(strategy, bucket, split="train", batch_size=global_batch_size, seed=1)
    test_dataset = read_flowers(strategy, bucket, split="test", batch_size=global_batch_size)

    model, metrics, train_step, test_step = make_steps(strategy)
    for epoch in range(arguments.epochs):
        for metric in metrics.values():
            metric.reset_state()
        for batch in train_dataset:
            train_step(batch)
        for batch in test_dataset:
            test_step(batch)
        results = ", ".join(f"{name} {float(metric.result()):.4f}" for name, metric in metrics.items())
        print(f"epoch {epoch + 1}: {results}")

    # Predictions need no loop: every row comes back once, in order.
    pictures, labels = draw_pictures(5, num_classes=len(CLASSES), num_pixels=NUM_PIXELS, seed=3)
    predicted = model.predict(pictures, verbose=0).argmax(axis=1)
    for label, guess in zip(labels, predicted, strict=True):
        print(f"a {CLASSES[label]} is taken for a {CLASSES[guess]}")
    if arguments.folder:
        print("model saved:", save_model(model, arguments.folder))


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, folder)


if __name__ == "__main__":
    main()
