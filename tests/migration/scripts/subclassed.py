"""Subclassed models, as scripts of 2021 have them: a train_step under fit, and a loop; their first call builds them."""

import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras import layers

rng = np.random.default_rng(11)
inputs = rng.normal(size=(64, 6)).astype("float32")
targets = np.tanh(inputs[:, :2]).astype("float32")
strategy = tf.distribute.MirroredStrategy()


class Scaled(layers.Layer):
    """A layer with a weight of its own, by Keras 2's order of arguments."""

    def build(self, input_shape):
        self.scale = self.add_weight("scale", [input_shape[-1]], initializer="ones")

    def call(self, inputs):
        return inputs * self.scale


class Network(tf.keras.Model):
    def __init__(self, first, **kwargs):
        super(Network, self).__init__(**kwargs)
        start = np.random.default_rng(first)
        self.hidden = layers.Dense(4, kernel_initializer=tf.constant_initializer(start.normal(0, 0.5, (6, 4))))
        self.scaled = Scaled()
        self.last = layers.Dense(2, kernel_initializer=tf.constant_initializer(start.normal(0, 0.5, (4, 2))))

    def call(self, inputs, training=False):
        hidden = tf.nn.leaky_relu(self.hidden(inputs))
        return self.last(self.scaled(tf.nn.l2_normalize(hidden, axis=-1)))


class Trained(Network):
    # Runs under fit: the loss and the metrics that compile was given.
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compiled_loss(y, y_pred, regularization_losses=self.losses)
        trainable_vars = self.trainable_variables
        gradients = tape.gradient(loss, trainable_vars)
        self.optimizer.apply_gradients(zip(gradients, trainable_vars))
        self.compiled_metrics.update_state(y, y_pred)
        return {m.name: m.result() for m in self.metrics}


with strategy.scope():
    model = Trained(1)
    model.compile(optimizer=tf.keras.optimizers.SGD(learning_rate=0.1), loss="mse", metrics=["mae"])
dataset = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(16)
history = model.fit(dataset, epochs=3, verbose=0)
for loss, mae in zip(history.history["loss"], history.history["mae"]):
    print("fit {:.6f} {:.6f}".format(loss, mae))
K.set_value(model.optimizer.lr, 0.01)
print("rate {:.4f}".format(K.get_value(model.optimizer.lr)))

GLOBAL_BATCH_SIZE = 16
with strategy.scope():
    network = Network(2)
    optimizer = tf.keras.optimizers.SGD(0.1)
    mean_loss = tf.keras.metrics.Mean()
    epoch = tf.Variable(0, trainable=False)


def step(data):
    x, y = data
    with tf.GradientTape() as tape:
        errors = tf.reduce_sum(tf.math.squared_difference(network(x, training=True), y), axis=[1])
        loss = tf.nn.compute_average_loss(errors, global_batch_size=GLOBAL_BATCH_SIZE)
        penalty = tf.add_n([tf.nn.l2_loss(weight) for weight in network.trainable_variables])
        loss += tf.nn.scale_regularization_loss(1e-3 * penalty)
    gradients = tape.gradient(loss, network.trainable_variables)
    optimizer.apply_gradients(zip(gradients, network.trainable_variables))
    mean_loss.update_state(errors)
    return loss


@tf.function
def train(data):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=(data,)), axis=None)


while epoch.numpy() < 3:
    for batch in strategy.experimental_distribute_dataset(dataset):
        total = train(batch)
    print("loop {:d} {:.6f} {:.6f}".format(epoch.numpy(), total.numpy(), mean_loss.result().numpy()))
    mean_loss.reset_states()
    epoch.assign_add(1)
print("shape", K.int_shape(network(inputs)))
