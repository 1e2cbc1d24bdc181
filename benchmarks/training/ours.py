"""Lockstep's side, as its users write it: ``python -m training.ours ORDER``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, Final

import numpy as np
from harness.protocol import own_peak_bytes, say

from lockstep.planning.operations import matrix_operations
from lockstep.strategies import OneDeviceStrategy
from lockstep.training.peaks import find_peak
from training.cases import (
    CASES,
    MOMENTUM,
    NUM_CLASSES,
    RATE_OF_CHECKS,
    RATE_OF_IMAGES,
    RATE_OF_TOKENS,
    RMS_EPSILON,
    ROPE_WAVELENGTH,
    SEED,
    WEIGHT_DECAY,
    Images,
    Tokens,
    make_batches,
)
from training.rounds import NUM_CHECKED_STEPS, Check, Order, read_order, serve

# isort: split
import jax  # after lockstep, which has Keras run on it
import keras
import keras_hub

RESNET50: Final = {
    "input_conv_filters": [64],
    "input_conv_kernel_sizes": [7],
    "stackwise_num_filters": [64, 128, 256, 512],
    "stackwise_num_blocks": [3, 4, 6, 3],
    "stackwise_num_strides": [1, 2, 2, 2],
    "block_type": "bottleneck_block",
}
"""KerasHub's, since `keras.applications.ResNet50` has other strides than torchvision's, and biases."""


def make_densenet121(size: Images) -> keras.Model:
    pixels = keras.Input((size.pixels, size.pixels, 3), dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    network = keras.applications.DenseNet121(
        weights=None,
        input_shape=(size.pixels, size.pixels, 3),
        classes=NUM_CLASSES,
        classifier_activation=None,
    )
    return keras.Model(pixels, network(scaled))


def make_resnet50(size: Images) -> keras.Model:
    pixels = keras.Input((size.pixels, size.pixels, 3), dtype="uint8")
    scaled = keras.layers.Rescaling(1 / 127.5, offset=-1)(pixels)
    features = keras_hub.models.ResNetBackbone(**RESNET50, image_shape=(size.pixels, size.pixels, 3))(scaled)
    pooled = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(pixels, keras.layers.Dense(NUM_CLASSES, name="predictions")(pooled))


def make_block(size: Tokens) -> keras.Model:
    backbone = keras_hub.models.LlamaBackbone(
        vocabulary_size=size.vocabulary_size,
        num_layers=1,
        num_query_heads=size.num_query_heads,
        hidden_dim=size.hidden_dim,
        intermediate_dim=size.intermediate_dim,
        num_key_value_heads=size.num_key_value_heads,
        rope_max_wavelength=ROPE_WAVELENGTH,
        layer_norm_epsilon=RMS_EPSILON,
    )
    tokens = keras.Input((size.length,), dtype="int32")
    hidden = backbone({"token_ids": tokens, "padding_mask": keras.ops.ones_like(tokens)})
    return keras.Model(tokens, backbone.token_embedding(hidden, reverse=True))


MAKERS: Final[dict[str, Any]] = {"densenet121": make_densenet121, "resnet50": make_resnet50, "block": make_block}


def make(order: Order, size: Images | Tokens) -> keras.Model:
    """Returns the compiled model. Call it under the strategy."""
    keras.utils.set_random_seed(SEED)
    model = MAKERS[order.case](size)
    if isinstance(size, Tokens):
        optimizer = keras.optimizers.AdamW(RATE_OF_TOKENS, weight_decay=WEIGHT_DECAY)
    else:
        optimizer = keras.optimizers.SGD(RATE_OF_CHECKS if order.checks else RATE_OF_IMAGES, momentum=MOMENTUM)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, steps_per_execution=order.steps_per_execution)
    return model


def forever(size: Images | Tokens, batch_size: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    batches = make_batches(size, batch_size)
    while True:
        yield from batches


def count_operations(model: keras.Model) -> int:
    """Counts the operations of one example, forward, in a trace."""
    (given,) = model.inputs
    trained, others = (
        [jax.ShapeDtypeStruct(variable.shape, variable.dtype) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    )
    example = jax.ShapeDtypeStruct((1, *given.shape[1:]), given.dtype)
    return matrix_operations(jax.make_jaxpr(model.stateless_call)(trained, others, example))


def check(order: Order) -> Check:
    """Counts the model, and trains the small one; its first weights are written for the other side."""
    case = CASES[order.case]
    with OneDeviceStrategy().scope():
        counted = make(order, case.size(order.size))
        small = make(order, case.small)
    np.savez(order.weights, **{variable.path: np.asarray(variable) for variable in small.weights})
    batch = make_batches(case.small, order.batch_size)[0]
    return Check(
        num_parameters=sum(int(np.prod(variable.shape)) for variable in counted.trainable_variables),
        forward_operations=count_operations(counted),
        losses=[float(small.train_on_batch(*batch)) for _ in range(NUM_CHECKED_STEPS)],
    )


def measure(order: Order) -> None:
    begun = time.perf_counter()
    size = CASES[order.case].size(order.size)
    keras.config.set_dtype_policy("mixed_bfloat16")
    with OneDeviceStrategy().scope():
        model = make(order, size)
    batches = forever(size, order.batch_size)
    (device,) = {device for variable in model.variables for device in variable.value.devices()}

    def train(num_steps: int) -> float:
        history = model.fit(batches, steps_per_epoch=num_steps, verbose=0)
        jax.block_until_ready([variable.value for variable in model.variables])
        return history.history["loss"][-1]

    def peak() -> int:
        return (device.memory_stats() or {}).get("peak_bytes_in_use") or own_peak_bytes()

    found = find_peak(device.device_kind)
    rate = found.rate("bfloat16") if found else None
    serve(order, train, begun=begun, device=device.device_kind, peak=peak, peak_rate=rate)


if __name__ == "__main__":
    asked = read_order()
    if asked.checks:
        say(asdict(check(asked)))
    else:
        measure(asked)
