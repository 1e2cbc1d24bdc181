"""Ray Serve with ``@serve.batch``: ``python -m serving.rivals.ray_serve PORT``."""

from __future__ import annotations

import signal
import sys

import ray
import torch
from ray import serve
from ray.serve.schema import LoggingConfig
from starlette.requests import Request

from serving.cases import MAX_BATCH_SIZE, MAX_WAIT_S, MAX_WAITING
from serving.rivals.net import Net


@serve.deployment(max_ongoing_requests=MAX_WAITING, logging_config=LoggingConfig(enable_access_log=False))
class Predictor:
    def __init__(self) -> None:
        self._net = Net()

    @serve.batch(max_batch_size=MAX_BATCH_SIZE, batch_wait_timeout_s=MAX_WAIT_S)
    async def predict(self, batch: list[torch.Tensor]) -> list[list[float]]:
        return self._net.predict(torch.stack(batch)).tolist()

    async def __call__(self, request: Request) -> dict[str, list[list[float]]]:
        instances = (await request.json())["instances"]
        return {"predictions": [await self.predict(self._net.read(instance)) for instance in instances]}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that Ray ends what it has started
    ray.init(include_dashboard=False)
    serve.start(
        http_options={"host": "127.0.0.1", "port": int(sys.argv[1])},
        logging_config=LoggingConfig(enable_access_log=False),
    )
    serve.run(Predictor.bind(), route_prefix="/predict")
    signal.pause()


if __name__ == "__main__":
    main()
