import jax
import keras
import numpy as np
import pytest

from lockstep.errors import BackendError, MissingInputError, ModelError, PeerLostError, StorageWriteError
from lockstep.strategies import MirroredStrategy
from lockstep.testing.strategies import make_model, make_rows
from lockstep.training import export, load_model, save_model


@pytest.mark.parametrize("url", ["{folder}/there/model.keras", "{folder}/there/", "memory://models/one"])
def test_a_model_comes_back_from_a_bucket(tmp_path, url):
    url = url.format(folder=tmp_path)
    inputs, labels = make_rows()
    with MirroredStrategy(["cpu:0", "cpu:1"]).scope():
        model = make_model()
    model.train_on_batch(inputs[:8], labels[:8])
    expected = model.predict(inputs, verbose=0)
    saved = save_model(model, url)
    assert saved.endswith("/model.keras")
    assert saved.startswith(url.rstrip("/"))
    with MirroredStrategy(["cpu:0", "cpu:1", "cpu:2"]).scope():
        again = load_model(saved)
    for variable, other in zip(again.optimizer.variables, model.optimizer.variables, strict=True):
        np.testing.assert_array_equal(variable, other)
        assert len(variable.value.sharding.device_set) == 3
    np.testing.assert_allclose(again.predict(inputs, verbose=0), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(load_model(url).predict(inputs, verbose=0), expected, rtol=1e-5, atol=1e-6)


def test_a_missing_model_is_named(tmp_path):
    with pytest.raises(MissingInputError, match=r"model\.keras"):
        load_model(tmp_path)


def test_a_file_that_holds_no_model_is_named(tmp_path):
    (tmp_path / "model.keras").write_bytes(b"not a model")
    with pytest.raises(ModelError, match=f"{tmp_path}/model.keras holds no model"):
        load_model(tmp_path)


class OtherProcesses:
    """Stands for the watchdog of a job: notes what is told the others, and answers."""

    def __init__(self, answer=None):
        self.told = []
        self.answer = answer

    def compare(self, what, entries, *, timeout_s):
        assert 0 < timeout_s < 86400
        self.told.append((what, *entries))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


def save_in_job(monkeypatch, target, *, rank, answer=None):
    others = OtherProcesses(answer)
    monkeypatch.setattr(export, "current_watchdog", lambda: others)
    monkeypatch.setattr(jax, "process_index", lambda: rank)
    try:
        save_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), target)
    finally:
        assert len(others.told) == 1
    return others.told[0]


def test_the_one_that_writes_meets_the_others_when_it_has_written(monkeypatch, tmp_path):
    assert save_in_job(monkeypatch, tmp_path, rank=0) == ("save_model", "no error")
    assert (tmp_path / "model.keras").exists()
    assert save_in_job(monkeypatch, tmp_path / "other", rank=1) == ("save_model", "no error")
    assert not (tmp_path / "other").exists()


def test_what_keeps_it_from_writing_is_told_to_all(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    told = []
    monkeypatch.setattr(OtherProcesses, "compare", lambda self, what, entries, timeout_s: told.append(entries))
    monkeypatch.setattr(export, "current_watchdog", OtherProcesses)
    with pytest.raises(StorageWriteError):
        save_model(keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]), tmp_path / "file" / "model")
    assert len(told) == 1
    assert told[0][0].startswith("StorageWriteError: ")
    monkeypatch.undo()
    with pytest.raises(BackendError, match="chief 0 has StorageWriteError: disk full"):
        save_in_job(monkeypatch, tmp_path, rank=1, answer="chief 0 has StorageWriteError: disk full")


def test_others_that_have_ended_matter_to_those_that_wait_alone(monkeypatch, tmp_path):
    gone = PeerLostError("worker 1 has ended its program")
    save_in_job(monkeypatch, tmp_path, rank=0, answer=gone)
    assert (tmp_path / "model.keras").exists()
    with pytest.raises(PeerLostError):
        save_in_job(monkeypatch, tmp_path, rank=1, answer=gone)
