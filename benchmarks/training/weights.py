"""The names and forms of Keras's weights on PyTorch's side. NumPy alone."""

from __future__ import annotations

import re
from typing import Final

import numpy as np

KINDS: Final = {
    "kernel": "weight",
    "gamma": "weight",
    "beta": "bias",
    "bias": "bias",
    "moving_mean": "running_mean",
    "moving_variance": "running_var",
}
DENSENET121: Final = (
    (r"conv1_(conv|bn)", lambda found: f"features.{'conv' if found[1] == 'conv' else 'norm'}0"),
    (r"conv(\d)_block(\d+)_([012])_(conv|bn)", lambda found: _dense_layer(*map(str, found.groups()))),
    (r"pool(\d)_(conv|bn)", lambda found: f"features.transition{int(found[1]) - 1}.{_of_torch(found[2])}"),
    (r"bn", lambda _: "features.norm5"),
    (r"predictions", lambda _: "classifier"),
)
RESNET50: Final = (
    (r"conv1_(conv|bn)", lambda found: f"{found[1]}1"),
    (
        r"stack(\d)_block(\d)_0_(conv|bn)",
        lambda found: f"layer{int(found[1]) + 1}.{found[2]}.downsample.{'01'[found[3] == 'bn']}",
    ),
    (
        r"stack(\d)_block(\d)_([123])_(conv|bn)",
        lambda found: f"layer{int(found[1]) + 1}.{found[2]}.{found[4]}{found[3]}",
    ),
    (r"predictions", lambda _: "fc"),
)
BLOCK: Final = {
    "token_embedding/embeddings": "embedding.weight",
    "token_embedding/reverse_embeddings": "head.weight",
    "self_attention/query/kernel": "query.weight",
    "self_attention/key/kernel": "key.weight",
    "self_attention/value/kernel": "value.weight",
    "self_attention/attention_output/kernel": "output.weight",
    "self_attention_layernorm/scale": "attention_norm.weight",
    "feedforward_intermediate_dense/kernel": "up.weight",
    "feedforward_gate_dense/kernel": "gate.weight",
    "feedforward_output_dense/kernel": "down.weight",
    "feedforward_layernorm/scale": "feedforward_norm.weight",
    "sequence_output_layernorm/scale": "last_norm.weight",
}


def _of_torch(kind: str) -> str:
    return "conv" if kind == "conv" else "norm"


def _dense_layer(stage: str, layer: str, place: str, kind: str) -> str:
    number = int(place) if kind == "conv" else int(place) + 1
    return f"features.denseblock{int(stage) - 1}.denselayer{layer}.{_of_torch(kind)}{number}"


def named_for_torch(case: str, path: str) -> str:
    """Returns the name of a weight on PyTorch's side.

    Args:
        case: a name of `CASES`.
        path: the variable's path in Keras.

    Raises:
        KeyError: it has no name there.
    """
    if case == "block":
        return BLOCK[path.removeprefix("transformer_layer_0/")]
    layer, kind = path.split("/")[-2:]
    for pattern, name in DENSENET121 if case == "densenet121" else RESNET50:
        found = re.fullmatch(pattern, layer)
        if found:
            return f"{name(found)}.{KINDS[kind]}"
    raise KeyError(path)


def formed_for_torch(case: str, path: str, value: np.ndarray) -> np.ndarray:
    """Returns a weight's value with the axes that PyTorch has.

    Args:
        case: a name of `CASES`.
        path: the variable's path in Keras.
        value: kernels of convolutions (height, width, inputs, outputs), of dense layers (inputs, outputs), of attention
            (inputs, heads, width) or (heads, width, outputs); others have one axis, or are embeddings.
    """
    if path.endswith("attention_output/kernel"):
        return value.reshape(-1, value.shape[-1]).T
    if path.endswith("reverse_embeddings"):
        return value.T
    if not path.endswith("kernel"):
        return value
    if value.ndim == 4:
        return value.transpose(3, 2, 0, 1)
    return value.reshape(len(value), -1).T
