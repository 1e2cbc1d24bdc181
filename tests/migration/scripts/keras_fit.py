"""Distributed training with Keras: the guide's structure, told anew, as it stood in tf.keras."""

import os
import tempfile

import numpy as np
import tensorflow as tf

FOLDER = tempfile.mkdtemp()
strategy = tf.distribute.MirroredStrategy()
print("Number of devices: {}".format(strategy.num_replicas_in_sync))

rng = np.random.default_rng(7)
images = rng.integers(0, 256, (96, 8, 8, 1)).astype("uint8")
labels = (images.reshape(96, -1).mean(axis=1) > 127).astype("int64")

BUFFER_SIZE = 96
BATCH_SIZE_PER_REPLICA = 48
BATCH_SIZE = BATCH_SIZE_PER_REPLICA * 2


def scale(image, label):
    image = tf.cast(image, tf.float32)
    image /= 255  # to [0, 1]
    return image, label


train_dataset = (
    tf.data.Dataset.from_tensor_slices((images, labels)).map(scale).cache().shuffle(BUFFER_SIZE).batch(BATCH_SIZE)
)
eval_dataset = tf.data.Dataset.from_tensor_slices((images[:40], labels[:40])).map(scale).batch(16)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 3, activation="relu", input_shape=(8, 8, 1)),
            tf.keras.layers.MaxPooling2D(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(2),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.Adam(learning_rate=1e-3),
        metrics=["accuracy"],
    )
first = np.random.default_rng(0)
model.set_weights([first.normal(0, 0.1, weight.shape).astype("float32") for weight in model.get_weights()])

checkpoint_dir = os.path.join(FOLDER, "training_checkpoints")
checkpoint_prefix = os.path.join(checkpoint_dir, "ckpt_{epoch}")


def decay(epoch):
    return 1e-2 if epoch < 2 else 1e-3


class PrintLR(tf.keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        print("learning rate of epoch {}: {:.4f}".format(epoch + 1, model.optimizer.lr.numpy()))


os.makedirs(checkpoint_dir)
callbacks = [
    tf.keras.callbacks.TensorBoard(log_dir=os.path.join(FOLDER, "logs")),
    tf.keras.callbacks.ModelCheckpoint(filepath=checkpoint_prefix, save_weights_only=True),
    tf.keras.callbacks.LearningRateScheduler(decay),
    PrintLR(),
]
history = model.fit(train_dataset, epochs=3, callbacks=callbacks, verbose=0)
for value in history.history["loss"]:
    print("loss {:.6f}".format(value))

model.load_weights(tf.train.latest_checkpoint(checkpoint_dir))
eval_loss, eval_acc = model.evaluate(eval_dataset, verbose=0)
print("evaluated {:.6f} {:.6f}".format(eval_loss, eval_acc))

path = os.path.join(FOLDER, "saved_model")
model.save(path, save_format="tf")
unreplicated_model = tf.keras.models.load_model(path)
unreplicated_model.compile(
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer="adam", metrics=["accuracy"]
)
print("evaluated {:.6f} {:.6f}".format(*unreplicated_model.evaluate(eval_dataset, verbose=0)))
with strategy.scope():
    replicated_model = tf.keras.models.load_model(path)
    replicated_model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True), optimizer="adam", metrics=["accuracy"]
    )
    print("evaluated {:.6f} {:.6f}".format(*replicated_model.evaluate(eval_dataset, verbose=0)))
