"""Saving and loading under strategies: the guide's structure, told anew, as it stood in tf.keras."""

import os
import tempfile

import numpy as np
import tensorflow as tf

mirrored_strategy = tf.distribute.MirroredStrategy()
folder = tempfile.mkdtemp()


def get_data():
    rng = np.random.default_rng(2)
    rows = rng.random((48, 10)).astype("float32")
    targets = (rows @ np.arange(10) > 22).astype("int64")
    train_dataset = tf.data.Dataset.from_tensor_slices((rows, targets)).cache().batch(24)
    eval_dataset = tf.data.Dataset.from_tensor_slices((rows, targets)).batch(24)
    return train_dataset, eval_dataset


def get_model():
    with mirrored_strategy.scope():
        model = tf.keras.Sequential(
            [
                tf.keras.Input((10,)),
                tf.keras.layers.Dense(6, activation="relu"),
                tf.keras.layers.Dense(2),
            ]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.Adam(),
            metrics=[tf.metrics.SparseCategoricalAccuracy()],
        )
        first = np.random.default_rng(0)
        model.set_weights([first.normal(0, 0.3, weight.shape).astype("float32") for weight in model.get_weights()])
        return model


model = get_model()
train_dataset, eval_dataset = get_data()
print("loss {:.6f}".format(model.fit(train_dataset, epochs=2, verbose=0).history["loss"][-1]))

keras_model_path = os.path.join(folder, "keras_save.keras")
model.save(keras_model_path)
restored_keras_model = tf.keras.models.load_model(keras_model_path)
print("loss {:.6f}".format(restored_keras_model.fit(train_dataset, epochs=2, verbose=0).history["loss"][-1]))

another_strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
with another_strategy.scope():
    restored_keras_model_ds = tf.keras.models.load_model(keras_model_path)
    restored_keras_model_ds.fit(train_dataset, epochs=2, verbose=0)
print("evaluated {:.6f}".format(restored_keras_model_ds.evaluate(eval_dataset, verbose=0)[0]))

weights_path = os.path.join(folder, "weights")
model.save_weights(weights_path)
with another_strategy.scope():
    with_weights = tf.keras.models.clone_model(model)
    with_weights.load_weights(weights_path)
rows = np.random.default_rng(4).random((5, 10)).astype("float32")
print("predicted {:.6f}".format(np.abs(with_weights.predict(rows, verbose=0)).sum()))
print("classes {}".format(np.argmax(with_weights(rows).numpy(), axis=-1).tolist()))
