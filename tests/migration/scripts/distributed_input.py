"""Distributed input: the guide's structure, told anew, as it stood in TensorFlow."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
global_batch_size = 4
dataset = tf.data.Dataset.from_tensors(([1.0], [1.0])).repeat(10).batch(global_batch_size)
dist_dataset = strategy.experimental_distribute_dataset(dataset)


@tf.function
def train_step(inputs):
    features, labels = inputs
    return labels - 0.3 * features


for x in dist_dataset:
    loss = strategy.run(train_step, args=(x,))
    print("sum {:.6f}".format(strategy.reduce(tf.distribute.ReduceOp.SUM, loss, axis=0).numpy()[0]))


def dataset_fn(input_context):
    batch_size = input_context.get_per_replica_batch_size(global_batch_size)
    d = tf.data.Dataset.range(16).map(lambda x: tf.cast(x, tf.float32) * 2.0).repeat()
    d = d.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    return d.batch(batch_size).prefetch(2)


dist_dataset = strategy.distribute_datasets_from_function(dataset_fn)
iterator = iter(dist_dataset)
for _ in range(3):
    parts = strategy.experimental_local_results(next(iterator))
    print("parts {}".format([float(tf.reduce_sum(part)) for part in parts]))


# Of a data set that ends, all of it.
def add_up(values):
    return tf.reduce_sum(values)


total = 0.0
for batch in strategy.experimental_distribute_dataset(tf.data.Dataset.range(10).batch(4)):
    total += float(strategy.reduce("SUM", strategy.run(add_up, args=(batch,)), axis=None))
print("total {:.6f}".format(total))


def value_fn(ctx):
    return tf.constant(float(ctx.replica_id_in_sync_group))


distributed_values = strategy.experimental_distribute_values_from_function(value_fn)
doubled = strategy.run(lambda v: v * 2, args=(distributed_values,))
print("values {}".format([float(value) for value in strategy.experimental_local_results(doubled)]))


def generator():
    for number in range(4):
        yield np.full((2,), number, np.float32)


dataset = tf.data.Dataset.from_generator(generator, output_signature=tf.TensorSpec(shape=(2,), dtype=tf.float32)).batch(
    2
)
for batch in strategy.experimental_distribute_dataset(dataset):
    print("generated {}".format([float(tf.reduce_sum(part)) for part in strategy.experimental_local_results(batch)]))
