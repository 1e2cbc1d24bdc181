"""Parameter server training by fit: the guide's structure, told anew, as it stood in tf.keras."""

import numpy as np
import tensorflow as tf

cluster_resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if cluster_resolver.task_type in ("worker", "ps"):
    server = tf.distribute.Server(
        cluster_resolver.cluster_spec(),
        job_name=cluster_resolver.task_type,
        task_index=cluster_resolver.task_id,
        protocol="grpc",
        start=True,
    )
    server.join()
variable_partitioner = tf.distribute.experimental.partitioners.MinSizePartitioner(
    min_shard_bytes=(256 << 10), max_shards=2
)
strategy = tf.distribute.ParameterServerStrategy(cluster_resolver, variable_partitioner=variable_partitioner)

global_batch_size = 32
x = np.random.default_rng(0).uniform(size=(10, 10)).astype("float32")
y = np.random.default_rng(1).uniform(size=(10,)).astype("float32")


def dataset_fn(input_context):
    dataset = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(10).repeat()
    dataset = dataset.shard(input_context.num_input_pipelines, input_context.input_pipeline_id)
    dataset = dataset.batch(input_context.get_per_replica_batch_size(global_batch_size))
    return dataset.prefetch(2)


input_options = tf.distribute.InputOptions(experimental_fetch_to_device=True)
dataset_creator = tf.keras.utils.experimental.DatasetCreator(dataset_fn, input_options=input_options)

with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.Input((10,)), tf.keras.layers.Dense(1)])
    model.compile(tf.keras.optimizers.legacy.SGD(lr=0.01), loss="mse", steps_per_execution=5)
history = model.fit(dataset_creator, epochs=4, steps_per_epoch=20, verbose=0)
print("first {:.6f}".format(history.history["loss"][0]))
print("last {:.6f}".format(history.history["loss"][-1]))
