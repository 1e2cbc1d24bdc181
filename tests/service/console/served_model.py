"""A model in the console whose only server answers each instance with two numbers."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from lockstep.service.prediction.routing import ServerAddress
from lockstep.service.store import VersionState
from lockstep.testing.served import Served

NAME = {"project": "local", "model": "digits"}
PATH = "/projects/local/models/digits"
SIGNATURE = {"name": "digits", "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 2, 2]}], "outputs": []}


def make_versions(service: Served) -> None:
    """Makes versions v1, the default, and v2, both READY, and v3, which is not."""
    models = service.context.models
    models.create_model(project="local", name="digits", description="", labels={})
    given = {"description": "", "labels": {}, "deployment_uri": "/m", "machine_type": "n1-standard-4"}
    for name in ("v1", "v2", "v3"):
        models.create_version(**NAME, name=name, **given)
        if name != "v3":
            assert models.update_version(models.get_version(**NAME, name=name), state=VersionState.READY)


class _Server(http.server.BaseHTTPRequestHandler):
    """A prediction server: it says what it takes, and predicts as many pairs as there are instances."""

    received: list[Any]

    def do_GET(self) -> None:
        self._answer(200, SIGNATURE)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.received.append(body)
        if body["instances"]:
            self._answer(200, {"predictions": [[0.25, 0.75]] * len(body["instances"])})
        else:
            self._answer(400, {"error": "instances; received []; allowed: a list of one <b>instance</b> or more"})

    def _answer(self, status: int, document: Any) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def serving(service: Served) -> Iterator[list[Any]]:
    """Serves version v1; yields what its server receives."""
    received: list[Any] = []
    handler = type("Handler", (_Server,), {"received": received})
    uid = service.context.models.get_version(**NAME, name="v1").uid
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as answers:
        thread = threading.Thread(target=answers.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        url = f"http://127.0.0.1:{answers.server_port}"
        found = {uid: [ServerAddress(uid="s", url=url, token="t", version_uid=uid)]}
        try:
            with mock.patch.object(service.context.routes, "_read", return_value=found):
                yield received
        finally:
            answers.shutdown()
            thread.join()
