from pathlib import Path

import numpy as np
import pytest
from tensorboardX.proto.event_pb2 import Event
from tests.training.test_backup import make_batches, make_linear

from lockstep.data import read_records
from lockstep.errors import InvalidInputError, StorageWriteError
from lockstep.storage import glob_urls
from lockstep.strategies import OneDeviceStrategy
from lockstep.training import BackupAndRestore, TensorBoard

DATA = {"x": np.ones((8, 1), np.float32), "y": np.ones((8, 1), np.float32), "batch_size": 2, "verbose": 0}


def events(folder):
    (path,) = sorted(folder.iterdir())
    return [Event.FromString(record) for record in read_records(str(path))]


def scalars(folder):
    return {(value.tag, event.step): value.simple_value for event in events(folder) for value in event.summary.value}


def test_epochs_are_written_as_keras_names_them(tmp_path):
    validation = (DATA["x"], DATA["y"])
    model = make_linear(OneDeviceStrategy())
    history = model.fit(**DATA, epochs=2, validation_data=validation, callbacks=[TensorBoard(tmp_path)]).history
    train = scalars(tmp_path / "train")
    assert set(train) == {(f"epoch_{name}", step) for name in ("loss", "learning_rate") for step in (0, 1)}
    assert train["epoch_loss", 1] == pytest.approx(history["loss"][1])
    assert train["epoch_learning_rate", 0] == pytest.approx(0.01)
    assert scalars(tmp_path / "validation")["epoch_loss", 0] == pytest.approx(history["val_loss"][0])


def test_batches_are_written_at_their_step(tmp_path):
    make_linear(OneDeviceStrategy()).fit(**DATA, epochs=2, callbacks=[TensorBoard(tmp_path, update_freq=2)])
    steps = [step for tag, step in scalars(tmp_path / "train") if tag == "batch_loss"]
    assert steps == [0, 2, 4, 6]


def test_a_restored_run_takes_back_what_it_writes_again(tmp_path):
    for epochs in (1, 2):
        callbacks = [BackupAndRestore(tmp_path / "checkpoints"), TensorBoard(tmp_path / str(epochs))]
        make_linear(OneDeviceStrategy()).fit(make_batches(), epochs=epochs, verbose=0, callbacks=callbacks)
    starts = [event.step for event in events(tmp_path / "2" / "train") if event.HasField("session_log")]
    assert starts == [1]
    assert {step for _, step in scalars(tmp_path / "2" / "train")} == {1}


def test_files_reach_a_bucket_and_leave_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    validation = (DATA["x"], DATA["y"])
    callback = TensorBoard("memory://logs/run")
    make_linear(OneDeviceStrategy()).fit(**DATA, validation_data=validation, callbacks=[callback])
    urls = glob_urls("memory://logs/run/**")
    assert sorted(Path(url).parent.name for url in urls) == ["train", "validation"]
    assert all(len(list(read_records(url))) > 1 for url in urls)
    assert list(tmp_path.iterdir()) == []


def test_evaluations_beside_the_training_are_written_by_the_steps_of_their_checkpoints(tmp_path, monkeypatch):
    exits = []
    monkeypatch.setattr("lockstep.training.tensorboard.finish_at_exit", lambda finish, what: exits.append(finish))
    callback = TensorBoard(tmp_path)
    for step in (10, 20):
        callback.on_checkpoint_evaluated(step, {"loss": step / 4, "accuracy": 0.5})
    (end,) = exits
    end()
    found = scalars(tmp_path / "validation")
    names = ("evaluation_loss_vs_iterations", "evaluation_accuracy_vs_iterations")
    assert found == {(names[0], 10): 2.5, (names[1], 10): 0.5, (names[0], 20): 5.0, (names[1], 20): 0.5}


def test_evaluations_reach_a_bucket_and_leave_nothing_behind(tmp_path, monkeypatch):
    exits = []
    monkeypatch.setattr("lockstep.training.tensorboard.finish_at_exit", lambda finish, what: exits.append(finish))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    callback = TensorBoard("memory://logs/beside")
    for step in (10, 20):
        callback.on_checkpoint_evaluated(step, {"loss": 1.0})
    (end,) = exits
    end()
    (url,) = glob_urls("memory://logs/beside/validation/*")
    assert len(list(read_records(url))) == 3, "its version and two results"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("update_freq", [0, "batch", True])
def test_an_update_freq_out_of_its_range(update_freq):
    with pytest.raises(InvalidInputError, match="update_freq"):
        TensorBoard("logs", update_freq=update_freq)


def test_a_directory_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageWriteError, match=f"cannot be written to {tmp_path}/file"):
        make_linear(OneDeviceStrategy()).fit(**DATA, callbacks=[TensorBoard(tmp_path / "file")])
