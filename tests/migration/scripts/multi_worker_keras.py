"""Multi-worker training with Keras: the guide's structure, told anew, as it stood in tf.keras."""

import json
import os
import sys

import numpy as np
import tensorflow as tf

FOLDER = sys.argv[1]
per_worker_batch_size = 32
tf_config = json.loads(os.environ.get("TF_CONFIG", '{"cluster": {"worker": ["127.0.0.1:0"]}}'))
num_workers = len(tf_config["cluster"]["worker"])

communication_options = tf.distribute.experimental.CommunicationOptions(
    implementation=tf.distribute.experimental.CommunicationImplementation.AUTO
)
strategy = tf.distribute.MultiWorkerMirroredStrategy(communication_options=communication_options)


def digits_dataset(batch_size):
    rng = np.random.default_rng(5)
    x_train = rng.integers(0, 256, (128, 5, 5))
    y_train = (x_train[:, 0, 0] // 64).astype(np.int64)
    x_train = x_train / np.float32(255)
    return tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(128, seed=1).repeat().batch(batch_size)


def build_and_compile_cnn_model():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.InputLayer(input_shape=(5, 5)),
            tf.keras.layers.Reshape(target_shape=(5, 5, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(4),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=0.1),
        metrics=["accuracy"],
    )
    return model


global_batch_size = 128
multi_worker_dataset = digits_dataset(global_batch_size)
options = tf.data.Options()
options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
multi_worker_dataset = multi_worker_dataset.with_options(options)

with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model()
first = np.random.default_rng(0)
multi_worker_model.set_weights(
    [first.normal(0, 0.2, weight.shape).astype("float32") for weight in multi_worker_model.get_weights()]
)

callbacks = [tf.keras.callbacks.BackupAndRestore(backup_dir=os.path.join(FOLDER, "backup"))]
history = multi_worker_model.fit(multi_worker_dataset, epochs=3, steps_per_epoch=1, callbacks=callbacks, verbose=0)
for value in history.history["loss"]:
    print("loss {:.6f}".format(value))

model_path = os.path.join(FOLDER, "keras-model")


def _is_chief(task_type, task_id, cluster_spec):
    return (
        task_type is None
        or task_type == "chief"
        or (task_type == "worker" and task_id == 0 and "chief" not in cluster_spec.as_dict())
    )


def _get_temp_dir(dirpath, task_id):
    temp_dir = os.path.join(dirpath, "workertemp_" + str(task_id))
    tf.io.gfile.makedirs(temp_dir)
    return temp_dir


def write_filepath(filepath, task_type, task_id, cluster_spec):
    dirpath = os.path.dirname(filepath)
    base = os.path.basename(filepath)
    if not _is_chief(task_type, task_id, cluster_spec):
        dirpath = _get_temp_dir(dirpath, task_id)
    return os.path.join(dirpath, base)


task_type = strategy.cluster_resolver.task_type
task_id = strategy.cluster_resolver.task_id
cluster_spec = strategy.cluster_resolver.cluster_spec()
write_model_path = write_filepath(model_path, task_type, task_id, cluster_spec)
multi_worker_model.save(write_model_path)
if not _is_chief(task_type, task_id, cluster_spec):
    tf.io.gfile.rmtree(os.path.dirname(write_model_path))

if _is_chief(task_type, task_id, cluster_spec):
    loaded_model = tf.keras.models.load_model(model_path)
    rows = np.random.default_rng(6).random((8, 5, 5)).astype("float32")
    print("predicted {:.6f}".format(float(np.abs(loaded_model.predict(rows, verbose=0)).sum())))
