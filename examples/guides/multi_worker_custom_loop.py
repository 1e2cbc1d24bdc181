"""Several machines and a loop of one's own: the guide "Custom training loop with Keras and MultiWorkerMirroredStrategy"
of tf.distribute, re-told.

Each process makes batches of its own records, the strategy puts them together into global batches, and a checkpoint
after each epoch lets a job that was ended go on. Two processes on one machine:

    export CLUSTER='{"worker": ["127.0.0.1:12345", "127.0.0.1:12346"]}'
    TF_CONFIG='{"cluster": '$CLUSTER', "task": {"type": "worker", "index": 0}}' \
        python examples/guides/multi_worker_custom_loop.py --folder /tmp/guide &
    TF_CONFIG='{"cluster": '$CLUSTER', "task": {"type": "worker", "index": 1}}' \
        python examples/guides/multi_worker_custom_loop.py --folder /tmp/guide
"""

import argparse
import tempfile

import lockstep
from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.data import Batches
from lockstep.data.sources import SOURCES, open_source
from lockstep.storage import join_url
from lockstep.strategies import MultiWorkerMirroredStrategy, ReduceOp, simulate_devices
from lockstep.training import save_model

# isort: split
import keras  # after lockstep, which has it run on JAX
import numpy as np


def parse_arguments():
    parser = argparse.ArgumentParser(description="Several machines and a loop of one's own.")
    parser.add_argument("--data", choices=SOURCES, default="fashion-mnist", help="digits need no download")
    parser.add_argument("--rows", type=int, help="train on so many images alone")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="images of a step for each replica")
    parser.add_argument("--simulate", type=int, metavar="N", help="N virtual devices in this process")
    parser.add_argument("--folder", help="where checkpoints and the model go; a temporary one by default")
    return parser.parse_args()


def build_model():
    model = keras.Sequential(
        [
            keras.Input((28, 28)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )
    model.compile(optimizer=keras.optimizers.Adam())
    model.optimizer.build(model.trainable_variables)  # so that it is there when a checkpoint is restored
    return model


def to_arrays(examples):
    """Makes a batch of what was read, one dict for each image."""
    return tuple(np.stack([example[name] for example in examples]) for name in ("image", "label"))


def train(arguments, folder):
    strategy = MultiWorkerMirroredStrategy()  # the processes meet here
    name = f"{strategy.topology.task.role} {strategy.topology.task.index}"
    print(f"{name}: {strategy.describe()}{' (simulated)' if arguments.simulate else ''}, chief: {strategy.is_chief}")
    keras.utils.set_random_seed(1)

    examples = list(open_source(arguments.data).splits()["train"])[: arguments.rows]
    global_batch_size = arguments.batch_size * strategy.num_replicas_in_sync

    def make_batches(context):
        """Called once in each process: batches of one replica's size, from every n-th record."""
        own = examples[context.input_pipeline_id :: context.num_input_pipelines]
        size = context.get_per_replica_batch_size(global_batch_size)
        return Batches(own, batch_size=size, transform=to_arrays, seed=1)

    batches = make_batches(strategy.input_context)
    dataset = strategy.distribute_datasets_from_function(lambda context: batches)

    with strategy.scope():
        model = build_model()
        accuracy = keras.metrics.SparseCategoricalAccuracy()
    per_image_loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def step(images, labels):
        """What one replica does."""

        def compute_loss():
            logits = model(images, training=True)
            return lockstep.compute_average_loss(per_image_loss(labels, logits)), logits

        variables = model.trainable_variables
        (loss, logits), gradients = lockstep.value_and_grad(compute_loss, variables, has_aux=True)
        model.optimizer.apply_gradients(zip(gradients, variables, strict=True))  # summed over all processes first
        accuracy.update_state(labels, logits)
        return loss

    @lockstep.function
    def train_step(batch):
        return strategy.reduce(ReduceOp.SUM, strategy.run(step, args=batch))

    with CheckpointDirectory(join_url(folder, "checkpoints")) as checkpoints:
        state = checkpoints.restore()  # the chief reads, all get it
        first_epoch, num_steps = 0, 0
        if state is not None:
            state.apply(model)
            first_epoch, num_steps = state.position.epoch, state.position.step
            batches.seek(epoch=first_epoch)  # each epoch has an order of its own
            print(f"{name}: going on from epoch {first_epoch}, step {num_steps}")
        for epoch in range(first_epoch, arguments.epochs):
            accuracy.reset_state()
            losses = [train_step(batch) for batch in dataset]
            num_steps += len(losses)
            loss = sum(map(float, losses)) / len(losses)
            print(f"{name}: epoch {epoch + 1}: {loss=:.4f}, accuracy={float(accuracy.result()):.4f}")
            position = Position(epoch=epoch + 1, batch=0, step=num_steps)
            checkpoints.save(TrainingState.capture(model, position=position))  # the chief writes

    save_model(model, folder)
    print(f"{name}: {num_steps} steps in all, {'model saved' if strategy.is_chief else 'the chief saved the model'}")


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the processes meet
    with tempfile.TemporaryDirectory() as folder:
        train(arguments, arguments.folder or folder)


if __name__ == "__main__":
    main()
