"""PyTorch's side, as its guides write fast training: ``python -m training.theirs ORDER``; needs torch and torchvision.

What makes it fast: ``torch.compile`` over model and loss, autocast to bfloat16, channels last, cuDNN's search for
algorithms, optimizers of one kernel, pinned batches that are copied by a stream of their own, one step ahead.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any, Final

import numpy as np
import torch
import torchvision
from harness.protocol import own_peak_bytes, say
from torch import nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from training.cases import (
    CASES,
    MOMENTUM,
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
from training.weights import formed_for_torch, named_for_torch

KERAS_EPSILON: Final = 1.001e-5
"""Of Keras's batch normalization in DenseNet."""
ADAM_EPSILON: Final = 1e-7
"""Keras's default."""


class Block(nn.Module):
    """A decoder block of Llama with its embedding and head."""

    def __init__(self, size: Tokens) -> None:
        super().__init__()
        self.head_dim = size.hidden_dim // size.num_query_heads
        width, keys = size.hidden_dim, size.num_key_value_heads * self.head_dim
        self.embedding = nn.Embedding(size.vocabulary_size, width)
        self.attention_norm, self.feedforward_norm, self.last_norm = (nn.RMSNorm(width, RMS_EPSILON) for _ in range(3))
        self.query, self.output = (nn.Linear(width, width, bias=False) for _ in range(2))
        self.key, self.value = (nn.Linear(width, keys, bias=False) for _ in range(2))
        self.gate, self.up = (nn.Linear(width, size.intermediate_dim, bias=False) for _ in range(2))
        self.down = nn.Linear(size.intermediate_dim, width, bias=False)
        self.head = nn.Linear(width, size.vocabulary_size, bias=False)
        frequencies = ROPE_WAVELENGTH ** -(torch.arange(0, self.head_dim, 2, dtype=torch.float32) / self.head_dim)
        angles = torch.outer(torch.arange(size.length, dtype=torch.float32), frequencies).repeat(1, 2)
        self.register_buffer("cosines", angles.cos(), persistent=False)
        self.register_buffer("sines", angles.sin(), persistent=False)

    def rotate(self, heads: Any) -> Any:
        """Turns queries or keys (batch, heads, length, width) by their positions."""
        left, right = heads.chunk(2, dim=-1)
        turned = torch.cat((-right, left), dim=-1)
        return heads * self.cosines.to(heads.dtype) + turned * self.sines.to(heads.dtype)

    def attend(self, hidden: Any) -> Any:
        query, key, value = (
            layer(hidden).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query, key = self.rotate(query), self.rotate(key)
        heads = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.output(heads.transpose(1, 2).flatten(2))

    def forward(self, tokens: Any) -> Any:
        hidden = self.embedding(tokens)
        hidden = hidden + self.attend(self.attention_norm(hidden))
        given = self.feedforward_norm(hidden)
        hidden = hidden + self.down(functional.silu(self.gate(given)) * self.up(given))
        return self.head(self.last_norm(hidden))


def make(order: Order, size: Images | Tokens) -> nn.Module:
    torch.manual_seed(SEED)
    if isinstance(size, Tokens):
        return Block(size)
    model = getattr(torchvision.models, order.case)(weights=None)
    if order.case == "densenet121":
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = KERAS_EPSILON
    return model


def make_optimizer(order: Order, model: nn.Module, size: Images | Tokens) -> torch.optim.Optimizer:
    if isinstance(size, Tokens):
        return torch.optim.AdamW(
            model.parameters(), RATE_OF_TOKENS, weight_decay=WEIGHT_DECAY, eps=ADAM_EPSILON, fused=True
        )
    rate = RATE_OF_CHECKS if order.checks else RATE_OF_IMAGES
    return torch.optim.SGD(model.parameters(), rate, momentum=MOMENTUM, fused=True)


def make_loss(model: nn.Module, size: Images | Tokens) -> Callable[[Any, Any], Any]:
    """Returns the function of a batch, as `make_batches` makes it, that is compiled."""

    def of_tokens(tokens: Any, wanted: Any) -> Any:
        return functional.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten().long())

    def of_images(pixels: Any, labels: Any) -> Any:
        images = pixels.permute(0, 3, 1, 2).float() / 127.5 - 1  # which is channels last, as the pixels are
        return functional.cross_entropy(model(images), labels.long())

    return of_tokens if isinstance(size, Tokens) else of_images


class Feed:
    """Endless batches on the device: the next one is copied while a step runs."""

    def __init__(self, size: Images | Tokens, batch_size: int, device: torch.device) -> None:
        batches = [tuple(map(torch.from_numpy, batch)) for batch in make_batches(size, batch_size)]
        self._device = device
        self._stream = torch.cuda.Stream() if device.type == "cuda" else None
        if self._stream is not None:
            batches = [tuple(array.pin_memory() for array in batch) for batch in batches]
        self._batches: Iterator[tuple[Any, ...]] = itertools.cycle(batches)
        self._next = self._copy()

    def _copy(self) -> tuple[Any, ...]:
        with torch.cuda.stream(self._stream):  # which does nothing for None
            return tuple(array.to(self._device, non_blocking=True) for array in next(self._batches))

    def take(self) -> tuple[Any, ...]:
        batch = self._next
        if self._stream is not None:
            current = torch.cuda.current_stream()
            current.wait_stream(self._stream)
            for array in batch:
                array.record_stream(current)
        self._next = self._copy()
        return batch


def count_operations(order: Order, size: Images | Tokens) -> int:
    with torch.device("meta"):
        model = make(order, size)
        shape = (1, size.length) if isinstance(size, Tokens) else (1, 3, size.pixels, size.pixels)
        example = torch.zeros(shape, dtype=torch.int32 if isinstance(size, Tokens) else torch.float32)
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            model(example)
    return counter.get_total_flops()


def check(order: Order) -> Check:
    """Counts the model, and trains the small one from the weights that the other side has written."""
    case = CASES[order.case]
    with torch.device("meta"):
        counted = make(order, case.size(order.size))
    model = make(order, case.small)
    with np.load(order.weights) as weights:
        values = {
            named_for_torch(order.case, path): torch.from_numpy(
                np.ascontiguousarray(formed_for_torch(order.case, path, weights[path]))
            )
            for path in weights.files
            if "seed_generator" not in path
        }
    missing, unexpected = model.load_state_dict(values, strict=False)
    assert not unexpected, unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing), missing
    optimizer, loss_of = make_optimizer(order, model, case.small), make_loss(model, case.small)
    losses = []
    batch = [torch.from_numpy(array) for array in make_batches(case.small, order.batch_size)[0]]
    for _ in range(NUM_CHECKED_STEPS):
        optimizer.zero_grad()
        loss = loss_of(*batch)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return Check(
        num_parameters=sum(parameter.numel() for parameter in counted.parameters()),
        forward_operations=count_operations(order, case.size(order.size)),
        losses=losses,
    )


def measure(order: Order) -> None:
    begun = time.perf_counter()
    size = CASES[order.case].size(order.size)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cudnn.benchmark = True
    torch.set_float32_matmul_precision("high")
    model = make(order, size).to(device)
    if isinstance(size, Images):
        model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(order, model, size)
    loss_of: Any = torch.compile(make_loss(model, size), mode="max-autotune" if order.autotunes else None)
    feed = Feed(size, order.batch_size, device)

    def train(num_steps: int) -> float:
        loss: Any = None
        for _ in range(num_steps):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, torch.bfloat16):
                loss = loss_of(*feed.take())
            loss.backward()
            optimizer.step()
        last = float(loss.detach())
        if device.type == "cuda":
            torch.cuda.synchronize()
        return last

    def peak() -> int:
        return torch.cuda.max_memory_allocated() if device.type == "cuda" else own_peak_bytes()

    name = torch.cuda.get_device_name() if device.type == "cuda" else "cpu"
    serve(order, train, begun=begun, device=name, peak=peak)


if __name__ == "__main__":
    asked = read_order()
    if asked.checks:
        say(asdict(check(asked)))
    else:
        measure(asked)
