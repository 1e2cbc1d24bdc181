"""Real processes: a coordinator, a worker and a server give what one device gives, by ``fit``."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
from tests.parameter_server.scripts.exact_steps import make_model, train

from lockstep.strategies import OneDeviceStrategy
from lockstep.testing.script_cluster import ScriptCluster

pytestmark = [
    pytest.mark.heavy,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
]

SCRIPT = Path(__file__).parent / "scripts" / "exact_steps.py"


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "Adagrad", "RMSprop", "Lamb", "Adafactor"])
def test_fifty_synchronous_steps_of_processes_are_those_of_one_device(tmp_path: Path, optimizer: str) -> None:
    result = tmp_path / "result.npz"
    with ScriptCluster([SCRIPT, optimizer, result], folder=tmp_path, num_workers=1, num_servers=1) as cluster:
        assert cluster.end() == 0, cluster.text("chief")
    keras.backend.clear_session()
    with OneDeviceStrategy().scope():
        model = make_model(optimizer)
        first = [np.array(variable) for variable in model.variables]
    expected = train(model)
    found = np.load(result)
    assert set(found) == set(expected)
    for name, value in expected.items():
        scale = max(float(np.abs(value).max()), 1e-3)
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5 * scale, err_msg=name)
    trained = [not np.array_equal(expected[f"v{number}"], value) for number, value in enumerate(first)]
    assert all(trained), "there is something to be compared"
