"""How data reaches the replicas: the guide "Distributed input" of tf.distribute, re-told.

Nothing is trained here; each part prints what the replicas get. Run it with other numbers of virtual devices:

    python examples/guides/input.py --simulate 4
"""

import argparse
import tempfile

import lockstep
from lockstep.data import Batches, FixedLenFeature, RecordFiles, pack, parse_batch
from lockstep.storage import join_url
from lockstep.strategies import AutoShardPolicy, MirroredStrategy, simulate_devices

# isort: split
import jax.numpy as jnp
import numpy as np

NUM_RECORDS = 22
FEATURES = {"number": FixedLenFeature((), "int64")}


def parse_arguments():
    parser = argparse.ArgumentParser(description="How data reaches the replicas.")
    parser.add_argument("--batch-size", type=int, default=2, help="records of a step for each replica")
    parser.add_argument("--simulate", type=int, metavar="N", help="run on N virtual devices")
    return parser.parse_args()


def numbers_to_arrays(records):
    return parse_batch(records, FEATURES)["number"].astype(np.float32)


def show_global_batches(strategy, files, *, batch_size):
    """`experimental_distribute_dataset` takes global batches, and gives each replica its part of them."""
    print("\n1. Global batches, divided by the strategy")
    batches = Batches(
        RecordFiles(files),
        batch_size=batch_size,
        transform=numbers_to_arrays,
        # With several processes each one reads its part alone: of every batch (DATA), or of the files (FILE). AUTO
        # takes files where there are as many as processes, and records otherwise; OFF divides nothing.
        policy=AutoShardPolicy.AUTO,
        input_context=strategy.input_context,
    )
    dataset = strategy.experimental_distribute_dataset(batches)
    print(f"{len(dataset)} batches of {NUM_RECORDS} records")
    for position, batch in enumerate(dataset):
        # `batch` is a value that each replica has its own of; these are the ones of this process's replicas.
        parts = strategy.experimental_local_results(batch)
        print(f"batch {position}: {[np.asarray(part).astype(int).tolist() for part in parts]}")
    # A batch that does not divide over all replicas is divided over as many as divide it: nothing is padded.


def show_uneven_sums(strategy, files, *, batch_size):
    """Sums over replicas are right whatever the last batch has."""
    print("\n2. A sum over all records")

    @lockstep.function
    def add_up(batch):
        return strategy.reduce("SUM", strategy.run(jnp.sum, args=(batch,)))

    batches = Batches(RecordFiles(files), batch_size=batch_size, transform=numbers_to_arrays)
    # A loop over the data stands outside the compiled function, and hands it each batch.
    total = sum(float(add_up(batch)) for batch in strategy.experimental_distribute_dataset(batches))
    print(f"{total:g}; it should be {NUM_RECORDS * (NUM_RECORDS - 1) / 2:g}")


def show_batches_of_each_process(strategy, *, batch_size):
    """`distribute_datasets_from_function` takes one replica's batches, made by each process from its own records."""
    print("\n3. Batches that each process makes for its replicas")

    def dataset_fn(context):
        print(
            f"process {context.input_pipeline_id} of {context.num_input_pipelines}, "
            f"{context.num_replicas_in_sync} replicas in all"
        )
        own = np.arange(NUM_RECORDS, dtype=np.float32)[context.input_pipeline_id :: context.num_input_pipelines]
        size = context.get_per_replica_batch_size(batch_size)
        return [own[start : start + size] for start in range(0, len(own), size)]

    dataset = strategy.distribute_datasets_from_function(dataset_fn)
    iterator = iter(dataset)  # so many steps, rather than a whole pass
    for position in range(2):
        parts = strategy.experimental_local_results(next(iterator))
        print(f"batch {position}: {[np.asarray(part).astype(int).tolist() for part in parts]}")


def show_values_of_replicas(strategy):
    """A value for each replica that comes from no data set."""
    print("\n4. A value for each replica")
    values = strategy.experimental_distribute_values_from_function(
        lambda context: np.float32(10 * context.replica_id_in_sync_group)
    )

    def add_own_number(value):
        return value + lockstep.get_replica_context().replica_id_in_sync_group

    results = strategy.run(add_own_number, args=(values,))
    print([float(result) for result in strategy.experimental_local_results(results)])


def show_generators(strategy, *, batch_size):
    """Whatever yields global batches will do: a generator, Grain, a PyDataset, tf.data, a PyTorch DataLoader."""
    print("\n5. A generator")

    def generate():
        """Yields a structure; each of its arrays has the batch's rows first."""
        for start in range(0, NUM_RECORDS, batch_size):
            numbers = np.arange(start, min(start + batch_size, NUM_RECORDS))
            yield {"number": numbers, "is_even": numbers % 2 == 0}

    for batch in strategy.experimental_distribute_dataset(generate):
        first = strategy.experimental_local_results(batch)[0]
        print({name: np.asarray(values).tolist() for name, values in first.items()}, "on the first replica")


def main():
    arguments = parse_arguments()
    if arguments.simulate:
        simulate_devices(arguments.simulate)  # before the first computation
    strategy = MirroredStrategy()
    print(strategy.describe() + (" (simulated)" if arguments.simulate else ""))
    batch_size = arguments.batch_size * strategy.num_replicas_in_sync  # of a global batch
    with tempfile.TemporaryDirectory() as folder:
        examples = [{"number": number} for number in range(NUM_RECORDS)]
        pack(examples, folder, name="numbers", split="train", num_shards=2, features=FEATURES)
        files = join_url(folder, "numbers-train-*.tfrec")
        show_global_batches(strategy, files, batch_size=batch_size)
        show_uneven_sums(strategy, files, batch_size=batch_size)
    show_batches_of_each_process(strategy, batch_size=batch_size)
    show_values_of_replicas(strategy)
    show_generators(strategy, batch_size=batch_size)


if __name__ == "__main__":
    main()
