"""LitServe with batches: ``python -m serving.rivals.lit_serve PORT``.

LitServe reads the annotations themselves, so they must not be put off to strings.
"""

import sys
from typing import Any

import litserve
import torch

from serving.cases import MAX_BATCH_SIZE, MAX_WAIT_S
from serving.rivals.net import Net


class Predictor(litserve.LitAPI):
    def setup(self, device: str) -> None:
        self._net = Net()

    def decode_request(self, request: dict[str, Any]) -> torch.Tensor:
        (instance,) = request["instances"]
        return self._net.read(instance)

    def predict(self, batch: torch.Tensor) -> torch.Tensor:
        return self._net.predict(batch)

    def encode_response(self, output: torch.Tensor) -> dict[str, list[list[float]]]:
        return {"predictions": [output.tolist()]}

    def batch(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(inputs)


if __name__ == "__main__":
    server = litserve.LitServer(Predictor(max_batch_size=MAX_BATCH_SIZE, batch_timeout=MAX_WAIT_S), accelerator="cpu")
    server.run(host="127.0.0.1", port=int(sys.argv[1]), generate_client_file=False, access_log=False)
