"""The course's lab on TPUs: its structure, told anew, as it stood in tf.keras; `tpu` below is what the lab connects to."""

import numpy as np
import tensorflow as tf

tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
tf.config.experimental_connect_to_cluster(tpu)
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.TPUStrategy(tpu)
print("Number of accelerators: ", strategy.num_replicas_in_sync)

AUTO = tf.data.experimental.AUTOTUNE
BATCH_SIZE = 8 * strategy.num_replicas_in_sync
rng = np.random.default_rng(13)
flowers = rng.integers(0, 256, (64, 6, 6, 3)).astype("uint8")
kinds = rng.integers(0, 5, 64)


def normalize_img(image, label):
    image = tf.cast(image, tf.float32) / 255.0
    return image, tf.one_hot(label, 5)


def get_batched_dataset():
    dataset = tf.data.Dataset.from_tensor_slices((flowers, kinds))
    dataset = dataset.map(normalize_img, num_parallel_calls=AUTO)
    dataset = dataset.cache().batch(BATCH_SIZE, drop_remainder=True).prefetch(AUTO)
    return dataset


train_dist_ds = strategy.experimental_distribute_dataset(get_batched_dataset())

with strategy.scope():
    inputs = tf.keras.layers.Input(shape=(6, 6, 3))
    features = tf.keras.layers.Flatten()(inputs)
    outputs = tf.keras.layers.Dense(5, activation="softmax")(features)
    model = tf.keras.Model(inputs=inputs, outputs=outputs)
    optimizer = tf.keras.optimizers.Adam(learning_rate=1e-3)
    train_loss = tf.keras.metrics.Mean("train_loss", dtype=tf.float32)
    train_accuracy = tf.keras.metrics.CategoricalAccuracy("train_accuracy", dtype=tf.float32)
    first = np.random.default_rng(0)
    model.set_weights([first.normal(0, 0.1, weight.shape).astype("float32") for weight in model.get_weights()])


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        probabilities = model(images, training=True)
        losses = tf.keras.losses.categorical_crossentropy(labels, probabilities)
        loss = tf.reduce_sum(losses) / BATCH_SIZE
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables))
    train_loss.update_state(losses)
    train_accuracy.update_state(labels, probabilities)


@tf.function
def train_multiple_steps(iterator, steps):
    for _ in tf.range(steps):
        strategy.run(train_step, args=next(iterator))


for epoch in range(2):
    train_multiple_steps(iter(train_dist_ds), tf.constant(4 // (strategy.num_replicas_in_sync // 2)))
    print("loss {:.6f} accuracy {:.6f}".format(train_loss.result().numpy(), train_accuracy.result().numpy()))
    train_loss.reset_states()
    train_accuracy.reset_states()
