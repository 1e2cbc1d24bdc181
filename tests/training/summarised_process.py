"""One of the processes of `test_summary_of_workers`: trains with a summary, and prints its numbers as JSON."""

import json
import sys

from lockstep.strategies import MultiWorkerMirroredStrategy  # before Keras, which it tells its backend
from lockstep.training import Summary, TensorBoard

# isort: split
import keras
import numpy as np

with MultiWorkerMirroredStrategy().scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(16), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
summary = Summary(log_dir=sys.argv[1])
callbacks = [summary, TensorBoard(sys.argv[1], histogram_freq=1)]
model.fit(np.ones((128, 4)), np.ones((128, 2)), batch_size=8, epochs=2, verbose=0, callbacks=callbacks)
report = summary.report
print(json.dumps([report.num_devices, report.num_steps, report.num_examples, report.step_operations]))
