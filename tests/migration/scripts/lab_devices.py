"""The course's labs on one device and central storage: their structure, told anew, as it stood in tf.keras."""

import numpy as np
import tensorflow as tf

cpus = tf.config.list_physical_devices("CPU")
print("there are devices:", len(cpus) > 0)
rng = np.random.default_rng(17)
rows = rng.normal(size=(60, 5)).astype("float32")
targets = rows @ np.arange(5, dtype="float32")[:, None]
dataset = tf.data.Dataset.from_tensor_slices((rows, targets)).shuffle(60).batch(60)


def train(strategy):
    with strategy.scope():
        model = tf.keras.models.Sequential()
        model.add(tf.keras.layers.InputLayer(input_shape=(5,)))
        model.add(tf.keras.layers.experimental.preprocessing.Rescaling(0.5))
        model.add(tf.keras.layers.Dense(4, activation=tf.nn.relu))
        model.add(tf.keras.layers.Dense(1))
        first = np.random.default_rng(0)
        model.set_weights([first.normal(0, 0.3, weight.shape).astype("float32") for weight in model.get_weights()])
        model.compile(
            loss=tf.keras.losses.Huber(),
            optimizer=tf.keras.optimizers.RMSprop(learning_rate=0.01),
            metrics=[tf.keras.metrics.MeanAbsoluteError()],
        )
    history = model.fit(dataset, epochs=3, verbose=0, workers=1)
    print("loss {:.6f} {:.6f}".format(history.history["loss"][-1], history.history["mean_absolute_error"][-1]))


train(tf.distribute.OneDeviceStrategy(device="/cpu:0"))
train(tf.distribute.experimental.CentralStorageStrategy())
