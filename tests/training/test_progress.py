import keras
import numpy as np
import pytest
from tests.training.test_backup import make_batches, make_linear

from lockstep.errors import InvalidInputError
from lockstep.strategies import OneDeviceStrategy
from lockstep.training import Progress


class Clock:
    """Goes on by a second each time it is asked."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        self.now_s += 1.0
        return self.now_s


def lines_of(data, **options):
    lines = []
    model = make_linear(OneDeviceStrategy())
    progress = Progress(write=lines.append, clock=Clock(), **options.pop("progress", {}))
    model.fit(**data, verbose=0, callbacks=[progress, Sequential()], **options)
    return lines


class Sequential(keras.callbacks.Callback):
    """Has Keras call the callbacks one after the other."""

    def on_train_batch_end(self, batch, logs=None):
        pass


def test_lines_of_a_run():
    lines = lines_of({"x": make_batches()}, epochs=2, progress={"every_s": 0})
    assert len(lines) == 14
    assert lines[0] == "epoch 1/2  first step after 2.0 s\n"
    assert lines[1].startswith("epoch 1/2  step 2/6 (33%)  loss ")
    assert lines[1].endswith("  2 examples/s  10 s left\n")
    assert lines[5].endswith("  2 examples/s  6 s left\n")
    assert lines[6].startswith("epoch 1/2  done in 7.0 s  loss ")
    assert lines[7].startswith("epoch 2/2  step 1/6 (16%)  loss ")
    assert lines[-2].endswith("  2 examples/s  0 s left\n")
    assert all("\r" not in line and line.count("\n") == 1 for line in lines)


def test_lines_are_some_seconds_apart():
    lines = lines_of({"x": make_batches()}, progress={"every_s": 3})
    said = [line.strip().split("  ")[1] for line in lines]
    assert said == ["first step after 2.0 s", "step 4/6 (66%)", "done in 7.0 s"]


def test_validation_is_shown_and_arrays_are_counted_in_steps():
    inputs = np.ones((8, 1), np.float32)
    data = {"x": inputs, "y": inputs, "validation_data": (inputs, inputs)}
    lines = lines_of(data, batch_size=4, progress={"every_s": 0})
    assert lines[1].endswith("  1 steps/s  0 s left\n")
    assert "  val_loss " in lines[-1]


def test_long_times_are_readable():
    from lockstep.training.progress import _duration

    assert [_duration(time_s) for time_s in (59.6, 61, 3725)] == ["1 min 0 s", "1 min 1 s", "1 h 2 min"]


def test_it_writes_to_standard_output(capsys):
    make_linear(OneDeviceStrategy()).fit(make_batches(), verbose=0, callbacks=[Progress()])
    assert capsys.readouterr().out.startswith("epoch 1/1  first step after ")


def test_a_negative_time_is_refused():
    with pytest.raises(InvalidInputError, match="every_s"):
        Progress(every_s=-1)
