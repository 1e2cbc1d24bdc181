"""What becomes of a training that has lost a server for good."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from tests.parameter_server.fitting.trainings import make_model
from tests.parameter_server.role_threads import RoleThreads

from lockstep.errors import UnavailableError
from lockstep.parameter_server import ParameterServerStrategy
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.links import Link
from lockstep.parameter_server.server.server import ParameterServer

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword")


def test_a_server_that_does_not_come_back_is_waited_for_once(
    run_roles: RoleThreads, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, is_gone = list[str](), threading.Event()
    reach = Cluster.reach_server

    def serve_for_some_steps(cluster: Cluster) -> None:
        listener = cluster.listen()
        server = ParameterServer(listener)
        while server.num_applied < 20:
            server.step()
        is_gone.set()  # before others can notice that it has gone
        listener.close()
        raise SystemExit(0)

    def reach_and_note(self: Cluster, index: int, *, within_s: float | None = None) -> Link:
        try:
            return reach(self, index, within_s=1.0 if is_gone.is_set() else within_s)
        except UnavailableError:
            if within_s is None:  # else it is no more than a farewell
                waited.append(self.process_name)
            raise

    monkeypatch.setattr("lockstep.parameter_server.strategy.serve", serve_for_some_steps)
    monkeypatch.setattr(Cluster, "reach_server", reach_and_note)
    inputs = np.ones((64, 4), np.float32)

    def script(strategy: ParameterServerStrategy) -> Any:
        with strategy.scope():
            model = make_model()
        model.fit(inputs, inputs[:, :1], batch_size=8, steps_per_epoch=400, verbose=0)

    with pytest.raises(UnavailableError, match=r"chief 0 cannot reach ps 0 at .* no answer within 1 s"):
        run_roles(script)
    assert waited.count("chief 0") == 1, "and whoever asks afterwards is told at once"
