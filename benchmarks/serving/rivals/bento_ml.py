"""BentoML with adaptive batching: ``bentoml serve serving.rivals.bento_ml:Predictor``.

BentoML reads the annotations themselves, so they must not be put off to strings.
"""

import os

import bentoml
import numpy as np
import torch

from serving.cases import IMAGE_MODEL, MAX_BATCH_SIZE, MODEL_VARIABLE
from serving.rivals.net import Net

IS_IMAGE_MODEL = os.environ[MODEL_VARIABLE] == IMAGE_MODEL


@bentoml.service(logging={"access": {"enabled": False}})
class Predictor:
    def __init__(self) -> None:
        self._net = Net()

    if IS_IMAGE_MODEL:

        @bentoml.api(batchable=True, max_batch_size=MAX_BATCH_SIZE)
        def predict(self, instances: list[dict[str, str]]) -> np.ndarray:
            return self._net.predict(torch.stack([self._net.read(instance) for instance in instances])).numpy()

    else:

        @bentoml.api(batchable=True, max_batch_size=MAX_BATCH_SIZE)
        def predict(self, instances: np.ndarray) -> np.ndarray:
            return self._net.predict(torch.from_numpy(instances.astype(np.float32))).numpy()
