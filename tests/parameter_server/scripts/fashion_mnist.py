"""Fashion-MNIST: trained in every role, or on one device with "one" as the argument. Prints the test's accuracy.

The learning rate falls to nothing: what is compared is what a training comes to, and not where its last steps led.
"""

from __future__ import annotations

import json
import sys

import lockstep
from lockstep.data.sources.fashion_mnist import find_fashion_mnist
from lockstep.parameter_server import ParameterServerStrategy

# isort: split
import keras

BATCH_SIZE, EPOCHS = 64, 5
splits = find_fashion_mnist().splits()
train, test = splits["train"], splits["test"]
images = train.images.reshape(-1, 28, 28, 1)
steps = len(images) // BATCH_SIZE
keras.utils.set_random_seed(3)
strategy = lockstep.strategies.OneDeviceStrategy() if "one" in sys.argv else ParameterServerStrategy()
with strategy.scope():
    model = keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dropout(0.2),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, decay_steps=EPOCHS * steps)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
model.fit(images, train.labels, batch_size=BATCH_SIZE, steps_per_epoch=steps, epochs=EPOCHS, verbose=2)
_, accuracy = model.evaluate(test.images.reshape(-1, 28, 28, 1), test.labels, batch_size=500, verbose=0)
print(json.dumps({"accuracy": accuracy}))
