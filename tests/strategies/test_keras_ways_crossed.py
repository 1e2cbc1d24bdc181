"""Each kind of data with each way to train, over nets and numbers of devices in turn; see `test_keras_ways`."""

import itertools
from collections.abc import Callable
from typing import Any

import grain
import keras
import numpy as np
import pytest
from keras import layers
from tests.strategies.keras_ways import BATCH_SIZE, NUM_ROWS, check, conv_net, digits, token_net, words

NUM_EPOCHS = 3
NUM_STEPS = -(-NUM_ROWS // BATCH_SIZE)
NUM_STEPS_OF_GENERATOR = 6
"""A multiple of each ``steps_per_execution``. Otherwise plain Keras takes more steps, to fill up the last execution."""


class Rows(keras.utils.PyDataset):
    def __init__(self, inputs: np.ndarray, targets: np.ndarray) -> None:
        super().__init__()
        self.columns = inputs, targets

    def __len__(self) -> int:
        return NUM_STEPS

    def __getitem__(self, batch: int) -> Any:
        return tuple(column[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE] for column in self.columns)


def grain_rows(inputs: np.ndarray, targets: np.ndarray) -> grain.MapDataset:
    return grain.MapDataset.source(list(zip(inputs, targets, strict=True)))


def grain_loader(inputs: np.ndarray, targets: np.ndarray) -> grain.DataLoader:
    return grain.DataLoader(
        data_source=list(zip(inputs, targets, strict=True)),
        sampler=grain.samplers.IndexSampler(NUM_ROWS, num_epochs=1, shard_options=grain.sharding.NoSharding()),
        operations=[grain.transforms.Batch(BATCH_SIZE)],
    )


def generator(inputs: np.ndarray, targets: np.ndarray) -> Any:
    batches = Rows(inputs, targets)
    return (batches[number % NUM_STEPS] for number in itertools.count())


def torch_loader(inputs: np.ndarray, targets: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    rows = torch.utils.data.TensorDataset(torch.from_numpy(inputs), torch.from_numpy(targets))
    return torch.utils.data.DataLoader(rows, batch_size=BATCH_SIZE)


def tf_data(inputs: np.ndarray, targets: np.ndarray) -> Any:
    tensorflow = pytest.importorskip("tensorflow")
    return tensorflow.data.Dataset.from_tensor_slices((inputs, targets)).batch(BATCH_SIZE)


DATA: dict[str, Callable[..., Any]] = {
    "py_dataset": Rows,
    "map_dataset": lambda *columns: grain_rows(*columns).batch(BATCH_SIZE),
    "iter_dataset": lambda *columns: grain_rows(*columns).to_iter_dataset().batch(BATCH_SIZE),
    "grain_loader": grain_loader,
    "generator": generator,
    "torch_loader": torch_loader,
    "tf_data": tf_data,
}

WAYS: dict[str, Callable[[], dict[str, Any]]] = {
    "averages": lambda: {"optimizer": keras.optimizers.AdamW(3e-3, weight_decay=0.02, use_ema=True)},
    "clipping": lambda: {
        "optimizer": keras.optimizers.SGD(
            keras.optimizers.schedules.PiecewiseConstantDecay([4, 8], [0.1, 0.05, 0.01]),
            momentum=0.9,
            nesterov=True,
            global_clipnorm=0.1,
        ),
        "steps_per_execution": 2,
    },
    "accumulation": lambda: {"optimizer": keras.optimizers.Adam(3e-3, gradient_accumulation_steps=3)},
    "several steps": lambda: {"optimizer": keras.optimizers.Lion(1e-3, weight_decay=0.01), "steps_per_execution": 3},
}

NETS: dict[str, Callable[..., Any]] = {
    "convolutions": conv_net,
    "gru": lambda **options: token_net(layers.GRU(5), **options),
    "rnn": lambda **options: token_net(layers.SimpleRNN(5, recurrent_dropout=0.2), **options),
}

CELLS = [
    (data, way, tuple(NETS)[number % len(NETS)], (2, 3, 8)[number // len(NETS) % 3])
    for number, (data, way) in enumerate(itertools.product(DATA, WAYS))
]


@pytest.mark.heavy
@pytest.mark.filterwarnings("ignore:Your input ran out of data")  # Keras does not ask Grain for a length
@pytest.mark.parametrize(("data", "way", "net", "num_devices"), CELLS)
def test_the_numbers_of_one_device(data: str, way: str, net: str, num_devices: int) -> None:
    columns = digits() if net == "convolutions" else words()

    def use(model: Any, note: Any) -> Any:
        history = model.fit(
            DATA[data](*columns),
            epochs=NUM_EPOCHS,
            steps_per_epoch=NUM_STEPS_OF_GENERATOR if data == "generator" else None,
            validation_data=columns,
            validation_batch_size=NUM_ROWS,
            shuffle=False,
            callbacks=[note],
            verbose=0,
        )
        evaluation = model.evaluate(*columns, batch_size=NUM_ROWS, return_dict=True, verbose=0)
        return history, evaluation, model.predict(columns[0], batch_size=7, verbose=0)

    check(lambda: NETS[net](**WAYS[way]()), use, num_devices=num_devices)
