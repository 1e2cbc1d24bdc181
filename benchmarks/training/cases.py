"""What is trained: models, sizes and batches. NumPy alone, since both sides' environments read it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

SEED: Final = 0
NUM_BATCHES: Final = 4
NUM_CLASSES: Final = 1000
COARSE: Final = 8
"""Images are so many times so many squares of one colour. Of noise, deep layers see the same everywhere."""
MOMENTUM: Final = 0.9
RATE_OF_IMAGES: Final = 0.01
RATE_OF_CHECKS: Final = 1e-8
"""Of images, where losses are compared. Gradients of so few examples are large: at a higher rate, rounding grows."""
RATE_OF_TOKENS: Final = 1e-4
WEIGHT_DECAY: Final = 0.1
RMS_EPSILON: Final = 1e-5
ROPE_WAVELENGTH: Final = 500_000


@final
@dataclass(frozen=True, kw_only=True)
class Images:
    """Square photos of three channels.

    Attributes:
        pixels: height and width.
    """

    pixels: int


@final
@dataclass(frozen=True, kw_only=True)
class Tokens:
    """A decoder block with its embedding and head, and its sequences, with the names of KerasHub's `LlamaBackbone`.

    Attributes:
        length: tokens of a sequence.
        hidden_dim: the width.
        intermediate_dim: the width within the feed-forward layers.
        num_query_heads: heads of queries.
        num_key_value_heads: heads of keys and values.
        vocabulary_size: small, so that the block, and not the head, takes the time.
    """

    length: int
    hidden_dim: int
    intermediate_dim: int
    num_query_heads: int
    num_key_value_heads: int
    vocabulary_size: int


LLAMA_3_8B: Final = Tokens(
    length=2048,
    hidden_dim=4096,
    intermediate_dim=14336,
    num_query_heads=32,
    num_key_value_heads=8,
    vocabulary_size=4096,
)
LLAMA_SMALL: Final = Tokens(
    length=64, hidden_dim=128, intermediate_dim=448, num_query_heads=4, num_key_value_heads=1, vocabulary_size=128
)


@final
@dataclass(frozen=True, kw_only=True)
class Case:
    """A model to train.

    Attributes:
        title: its name in the tables.
        unit: what a second's work is counted in.
        full: its size for a result.
        small: its size for a try on a processor, and for the comparison of losses.
        batch_sizes: the default batch sizes for a result.
    """

    title: str
    unit: str
    full: Images | Tokens
    small: Images | Tokens
    batch_sizes: tuple[int, ...]

    def size(self, name: str) -> Images | Tokens:
        """Returns the size "full" or "small"."""
        return {"full": self.full, "small": self.small}[name]

    def units_of(self, size: Images | Tokens) -> int:
        """Returns how many units an example is: one image, or the tokens of a sequence."""
        return size.length if isinstance(size, Tokens) else 1


CASES: Final = {
    "densenet121": Case(
        title="DenseNet121",
        unit="images",
        full=Images(pixels=224),
        small=Images(pixels=64),
        batch_sizes=(32, 128),
    ),
    "resnet50": Case(
        title="ResNet50",
        unit="images",
        full=Images(pixels=224),
        small=Images(pixels=64),
        batch_sizes=(32, 128),
    ),
    "block": Case(
        title="decoder block of Llama 3 8B's shape",
        unit="tokens",
        full=LLAMA_3_8B,
        small=LLAMA_SMALL,
        batch_sizes=(2, 8),
    ),
}


def make_batches(size: Images | Tokens, batch_size: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns some batches of random examples, the same on both sides.

    Args:
        size: what an example is.
        batch_size: examples of a batch.

    Returns:
        For images, pixels (batch_size, height, width, 3) in uint8 and labels (batch_size,) in int32. For tokens, the
        tokens and the ones to predict, each (batch_size, length) in int32.
    """
    rng = np.random.default_rng(SEED)
    batches = []
    for _ in range(NUM_BATCHES):
        if isinstance(size, Tokens):
            tokens = rng.integers(0, size.vocabulary_size, (batch_size, size.length + 1), np.int32)
            batches.append((np.ascontiguousarray(tokens[:, :-1]), np.ascontiguousarray(tokens[:, 1:])))
        else:
            coarse = rng.integers(0, 256, (batch_size, COARSE, COARSE, 3), np.uint8)
            images = coarse.repeat(size.pixels // COARSE, 1).repeat(size.pixels // COARSE, 2)
            batches.append((images, rng.integers(0, NUM_CLASSES, batch_size, np.int32)))
    return batches
