"""Several GPUs, one machine: the structure of keras.io's guide, told anew, as it stood in tf.keras."""

import os
import tempfile

import numpy as np
import tensorflow as tf
from tensorflow import keras

checkpoint_dir = os.path.join(tempfile.mkdtemp(), "ckpt")
if not os.path.exists(checkpoint_dir):
    os.makedirs(checkpoint_dir)


def get_compiled_model():
    inputs = keras.Input(shape=(16,))
    x = keras.layers.Dense(12, activation="relu")(inputs)
    x = keras.layers.Dense(12, activation="relu")(x)
    outputs = keras.layers.Dense(4)(x)
    model = keras.Model(inputs, outputs)
    model.compile(
        optimizer=keras.optimizers.Adam(),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.SparseCategoricalAccuracy()],
    )
    return model


def get_dataset():
    batch_size = 32
    rng = np.random.default_rng(9)
    x = rng.normal(size=(160, 16)).astype("float32")
    y = rng.integers(0, 4, 160).astype("float32")
    x_train, y_train, x_val, y_val = x[:-32], y[:-32], x[-32:], y[-32:]
    return (
        tf.data.Dataset.from_tensor_slices((x_train, y_train)).batch(batch_size),
        tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(batch_size),
        tf.data.Dataset.from_tensor_slices((x_val, y_val)).batch(batch_size),
    )


def make_or_restore_model():
    checkpoints = [checkpoint_dir + "/" + name for name in os.listdir(checkpoint_dir)]
    if checkpoints:
        latest_checkpoint = max(checkpoints, key=os.path.getctime)
        print("restoring")
        return keras.models.load_model(latest_checkpoint)
    print("creating")
    model = get_compiled_model()
    first = np.random.default_rng(0)
    model.set_weights([first.normal(0, 0.3, weight.shape).astype("float32") for weight in model.get_weights()])
    return model


def run_training(epochs=1):
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = make_or_restore_model()
    train_dataset, val_dataset, test_dataset = get_dataset()
    callbacks = [keras.callbacks.ModelCheckpoint(filepath=checkpoint_dir + "/ckpt-{epoch}.keras", save_freq="epoch")]
    history = model.fit(train_dataset, epochs=epochs, callbacks=callbacks, validation_data=val_dataset, verbose=0)
    print("loss {:.6f} {:.6f}".format(history.history["loss"][-1], history.history["val_loss"][-1]))
    print("evaluated {:.6f}".format(model.evaluate(test_dataset, verbose=0)[0]))


run_training(epochs=1)
run_training(epochs=1)
