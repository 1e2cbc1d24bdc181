"""FastAPI without batches: ``uvicorn serving.rivals.fast_api:app``."""

from __future__ import annotations

import os

import torch
from fastapi import FastAPI
from pydantic import BaseModel

from serving.cases import MODEL_VARIABLE
from serving.rivals.net import Net


class ImageFile(BaseModel):
    b64: str


INSTANCES = {"tabular": list[float], "fashion_mnist": list[list[list[float]]], "mobilenet": ImageFile}
Instance = INSTANCES[os.environ[MODEL_VARIABLE]]


class Request(BaseModel):
    instances: list[Instance]


class Response(BaseModel):
    predictions: list[list[float]]


net = Net()
app = FastAPI()


@app.post("/predict")
def predict(request: Request) -> Response:
    instances = [one.model_dump() if isinstance(one, ImageFile) else one for one in request.instances]
    batch = torch.stack([net.read(instance) for instance in instances])
    return Response(predictions=net.predict(batch).tolist())
