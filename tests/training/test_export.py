import numpy as np
import pytest

from lockstep.errors import MissingInputError, ModelError
from lockstep.strategies import MirroredStrategy
from lockstep.testing.strategies import make_model, make_rows
from lockstep.training import load_model, save_model


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
