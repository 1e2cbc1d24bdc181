"""A damaged checkpoint is noticed, whatever has happened to which file, and the one before it is restored."""

import json
import logging

import keras
import numpy as np
import pytest

from lockstep.checkpoints import CheckpointDirectory, Position, TrainingState
from lockstep.checkpoints.checksums import FILE
from lockstep.checkpoints.run_state import RunState
from lockstep.checkpoints.turnover import Ranking
from lockstep.errors import CorruptDataError, InvalidInputError
from lockstep.strategies import OneDeviceStrategy


def make_model():
    with OneDeviceStrategy().scope():
        model = keras.Sequential([keras.Input((50,)), keras.layers.Dense(40, use_bias=False)])
        model.compile("sgd", "mse")
        model.optimizer.build(model.trainable_variables)
    return model


def save(folder, *steps, losses=(), keep=9, rank=None):
    """Saves a model whose weights are all the number of the step, after each of these steps."""
    model = make_model()
    with CheckpointDirectory(folder, keep=keep) as directory:
        if rank is not None:
            directory.rank(rank)
        for number, step in enumerate(steps):
            model.set_weights([np.full((50, 40), step, np.float32)])
            run = RunState(metrics={"loss": losses[number]} if losses else {})
            directory.save(TrainingState.capture(model, position=Position(epoch=step, batch=0, step=step), run=run))


def files_of(folder, step):
    return sorted(path for path in (folder / str(step)).rglob("*") if path.is_file())


def largest(folder, step):
    """Returns the largest file with values of arrays."""
    return max(
        (path for path in files_of(folder, step) if path.parent.name == "d"), key=lambda path: path.stat().st_size
    )


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(bytes(content))


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def remove(path):
    path.unlink()


DAMAGES = {flip: "", cut: "were written", remove: "is missing"}


def restored_step(folder):
    """Returns what was restored: the step, by the position and by the weights."""
    model = make_model()
    with CheckpointDirectory(folder) as directory:
        state = directory.restore()
        state.apply(model)
    assert np.unique(np.asarray(model.weights[0].value)).tolist() == [state.position.step]
    return state.position.step


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.heavy
def test_any_damage_to_any_file_of_the_latest_is_noticed(tmp_path, caplog, damage):
    save(tmp_path, 1, 2)
    names = {path.name for path in files_of(tmp_path, 2)}
    assert {FILE, "metadata", "manifest.ocdbt"} <= names
    own = [path for path in files_of(tmp_path, 2) if path.name not in ("commit_success.txt", "_CHECKPOINT_METADATA")]
    assert len(own) > 5
    for path in own:
        content = path.read_bytes()
        caplog.clear()
        damage(path)
        assert restored_step(tmp_path) == 1, path
        warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        said = [text for text in warnings if text.startswith(f"checkpoint {tmp_path}/2 cannot be read: ")]
        assert len(said) == 1, (path, warnings)
        assert said[0].endswith("; checkpoint 1 is restored instead")
        if path.name not in ("metadata", FILE):  # those two are read first, and may be no JSON any more
            assert path.name in said[0]
            assert DAMAGES[damage] in said[0]
        path.write_bytes(content)
        assert restored_step(tmp_path) == 2


def test_damage_to_several_and_to_all(tmp_path):
    save(tmp_path, 1, 2, 3)
    flip(largest(tmp_path, 3))
    cut(largest(tmp_path, 2))
    assert restored_step(tmp_path) == 1
    with (
        CheckpointDirectory(tmp_path) as directory,
        pytest.raises(CorruptDataError, match=r"/2 cannot be read: .* were written; delete that"),
    ):
        directory.restore(2)
    remove(largest(tmp_path, 1))
    with CheckpointDirectory(tmp_path) as directory:
        with pytest.raises(CorruptDataError, match=r"all 3 checkpoints in .* are damaged; .*/3 cannot be.*delete them"):
            directory.restore()
        assert directory.damaged == {1, 2, 3}


def test_the_damaged_one_does_not_push_out_a_whole_one(tmp_path):
    save(tmp_path, 1, 2, 3)
    flip(largest(tmp_path, 3))
    model = make_model()
    with CheckpointDirectory(tmp_path, keep=2) as directory:
        state = directory.restore()
        directory.save(TrainingState.capture(model, position=state.position))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4"]


def test_a_checkpoint_of_a_version_without_checksums_is_restored(tmp_path):
    save(tmp_path, 1, 2)
    (tmp_path / "2" / FILE).unlink()
    document = tmp_path / "2" / "document" / "metadata"
    content = json.loads(document.read_text())
    del content["has_checksums"], content["run"]
    document.write_text(json.dumps(content))
    assert restored_step(tmp_path) == 2


LOW, HIGH = (Ranking(monitor="loss", is_higher_better=up) for up in (False, True))


@pytest.mark.parametrize(("rank", "kept"), [(LOW, ["2", "5", "6"]), (HIGH, ["3", "5", "6"]), (None, ["5", "6"])])
def test_the_best_one_outlives_the_others(tmp_path, rank, kept):
    losses = [4.0, 1.0, 9.0, float("nan"), 1.0, 5.0]
    save(tmp_path, *range(1, 5), losses=losses[:4], keep=2, rank=rank)
    save(tmp_path, 5, 6, losses=losses[4:], keep=2, rank=rank)  # another process, which has to read the values
    assert sorted(path.name for path in tmp_path.iterdir()) == kept
    with CheckpointDirectory(tmp_path, is_read_only=True) as directory:
        best = directory.restore_best(rank or LOW)
        assert best.run_state().metrics == {"loss": losses[best.position.step - 1]}
        assert f"{best.position.step}" == kept[0]
        assert directory.restore_best(Ranking(monitor="val_loss", is_higher_better=False)) is None


def test_the_next_best_one_takes_the_place_of_a_damaged_best(tmp_path, caplog):
    save(tmp_path, 1, 2, 3, losses=[2.0, 1.0, 3.0])
    flip(largest(tmp_path, 2))
    with CheckpointDirectory(tmp_path, is_read_only=True) as directory:
        assert directory.restore_best(LOW).position.step == 1
    assert "checkpoint 1 is restored instead" in caplog.text


def test_a_run_s_state_comes_back_as_it_was(tmp_path):
    state = {
        "plain": [None, True, 3, 2.5, "text", float("inf")],
        "arrays": {"a": np.arange(3, dtype=np.int64), "b": np.float32(1.5), "empty": np.zeros((0, 2), np.float32)},
        "of jax": keras.ops.cast(keras.ops.ones((2,)), "bfloat16"),
        "array": {"array": "0"},
    }
    model = make_model()
    with CheckpointDirectory(tmp_path) as directory:
        run = RunState(metrics={"loss": 0.1}, callbacks={"Mine": state})
        directory.save(TrainingState.capture(model, position=Position(epoch=1, batch=0, step=1), run=run))
        directory.wait()
        found = directory.restore().run_state()
    assert found.metrics == {"loss": 0.1}
    found = found.callbacks["Mine"]
    assert (found["plain"], found["array"]) == (state["plain"], state["array"])
    for name, value in state["arrays"].items():
        assert found["arrays"][name].dtype == value.dtype
        np.testing.assert_array_equal(found["arrays"][name], value)
    assert found["of jax"].dtype.name == "bfloat16"
    with pytest.raises(
        InvalidInputError, match=r"state of callback Mine\['bad'\]\[1\] cannot be saved; received 'set'"
    ):
        RunState(callbacks={"Mine": {"bad": [1, {2}]}}).to_json()
