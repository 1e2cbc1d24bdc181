"""What is said to all servers at once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
from tests.parameter_server.threads import served

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.links import frames
from lockstep.parameter_server.model_setup import describe_model
from lockstep.parameter_server.protocol import Mode


def test_a_model_that_is_too_long_to_be_described_is_refused_at_set_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MAX_HEADER_BYTES", 4000)
    variables = [keras.Variable(np.zeros(1, np.float32), name=f"v{number}") for number in range(50)]
    model = describe_model(variables, optimizers=[], num_servers=2, partitioner=None, mode=Mode.ASYNCHRONOUS)
    with served(2) as cluster:
        servers = cluster.reach_servers()
        with pytest.raises(InvalidInputError, match=r"a 'setup' message has a header .* fewer and larger ones"):
            servers.set_up(model.setup)
        servers.close()
