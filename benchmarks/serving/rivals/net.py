"""The same models in PyTorch, with the weights of the Keras ones."""

from __future__ import annotations

import base64
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from PIL import Image
from torch import nn

from serving.cases import FOLDER_VARIABLE, IMAGE_MODEL, MODEL_VARIABLE, Case

Weights = Mapping[str, np.ndarray]

STRIDES: Final = (1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1)
"""Of MobileNet's depthwise convolutions."""
EPSILON: Final = 1e-3
"""Keras's, for batch normalization."""


class Pixels(nn.Module):
    """Turns pixels from 0 to 255 of shape [n, height, width, 3] to numbers from -1 to 1, channels first."""

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        return pixels.permute(0, 3, 1, 2).float() / 127.5 - 1


class ChannelsFirst(nn.Module):
    """Turns [n, height, width, channels] to [n, channels, height, width]."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.permute(0, 3, 1, 2)


def conv(weights: Weights, name: str, *, stride: int = 1, padding: int = 0) -> nn.Conv2d:
    kernel = weights[f"{name}/kernel"]
    is_depthwise = "conv_dw" in name
    num_in, num_out = kernel.shape[2:]
    if is_depthwise:
        kernel, num_out = kernel.transpose(0, 1, 3, 2), num_in
    bias = weights.get(f"{name}/bias")
    layer = nn.Conv2d(
        num_in,
        num_out,
        kernel.shape[0],
        stride=stride,
        padding=padding,
        groups=num_in if is_depthwise else 1,
        bias=bias is not None,
    )
    layer.weight.data = torch.from_numpy(np.ascontiguousarray(kernel.transpose(3, 2, 0, 1)))
    if bias is not None:
        layer.bias.data = torch.from_numpy(bias)
    return layer


def norm(weights: Weights, name: str) -> nn.BatchNorm2d:
    gamma, beta, mean, variance = (
        torch.from_numpy(weights[f"{name}/{kind}"]) for kind in ("gamma", "beta", "moving_mean", "moving_variance")
    )
    layer = nn.BatchNorm2d(len(gamma), eps=EPSILON)
    layer.weight.data, layer.bias.data, layer.running_mean, layer.running_var = gamma, beta, mean, variance
    return layer


def dense(weights: Weights, name: str, *, image: tuple[int, int, int] | None = None) -> nn.Linear:
    """Makes a dense layer.

    Args:
        weights: all weights.
        name: the layer's name.
        image: the height, width and channels of what it gets flattened; Keras flattens with channels last.
    """
    kernel = weights[f"{name}/kernel"]
    if image is not None:
        kernel = kernel.reshape(*image, -1).transpose(2, 0, 1, 3).reshape(kernel.shape)
    layer = nn.Linear(*kernel.shape)
    layer.weight.data = torch.from_numpy(np.ascontiguousarray(kernel.T))
    layer.bias.data = torch.from_numpy(weights[f"{name}/bias"])
    return layer


def tabular(weights: Weights) -> nn.Module:
    first, second, head = (dense(weights, name) for name in ("dense1", "dense2", "head"))
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), head, nn.Softmax(dim=1))


def fashion_mnist(weights: Weights) -> nn.Module:
    convolutions = [ChannelsFirst()]
    for name in ("conv1", "conv2"):
        convolutions += [conv(weights, name), nn.ReLU(), nn.MaxPool2d(2)]
    hidden = dense(weights, "dense1", image=(5, 5, 64))
    return nn.Sequential(*convolutions, nn.Flatten(), hidden, nn.ReLU(), dense(weights, "head"), nn.Softmax(dim=1))


def mobilenet(weights: Weights) -> nn.Module:
    pad = nn.ZeroPad2d((0, 1, 0, 1))  # as TensorFlow pads where the stride is 2
    layers = [Pixels(), pad, conv(weights, "conv1", stride=2), norm(weights, "conv1_bn"), nn.ReLU6()]
    for number, stride in enumerate(STRIDES, start=1):
        depthwise, pointwise = f"conv_dw_{number}", f"conv_pw_{number}"
        layers += [pad] if stride == 2 else []
        layers += [conv(weights, depthwise, stride=stride, padding=2 - stride), norm(weights, f"{depthwise}_bn")]
        layers += [nn.ReLU6(), conv(weights, pointwise), norm(weights, f"{pointwise}_bn"), nn.ReLU6()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), conv(weights, "conv_preds"), nn.Flatten(), nn.Softmax(dim=1))


MAKERS: Final = {"tabular": tabular, "fashion_mnist": fashion_mnist, "mobilenet": mobilenet}


class Net:
    """The model that the environment names, ready to predict."""

    def __init__(self) -> None:
        case = Case(name=os.environ[MODEL_VARIABLE], folder=Path(os.environ[FOLDER_VARIABLE]))
        with np.load(case.weights_path) as weights:
            self._net = MAKERS[case.name](dict(weights)).eval()
        self._takes_images = case.name == IMAGE_MODEL
        print(f"PyTorch's threads: {torch.get_num_threads()}", flush=True)

    def read(self, instance: Any) -> torch.Tensor:
        """Turns an instance of a request to a tensor."""
        if not self._takes_images:
            return torch.tensor(instance, dtype=torch.float32)
        image = Image.open(io.BytesIO(base64.b64decode(instance["b64"])))
        return torch.from_numpy(np.array(image.convert("RGB")))

    def predict(self, batch: torch.Tensor) -> torch.Tensor:
        """Returns predictions of shape [n, classes] for a batch."""
        with torch.inference_mode():
            return self._net(batch)
