"""What a side is told by ``gpu.py``, and what it says: see `harness.protocol`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, final

from harness import protocol

NUM_CHECKED_STEPS: Final = 3


@final
@dataclass(frozen=True, kw_only=True)
class Order:
    """What a side is to do.

    Attributes:
        case: a name of `CASES`.
        size: "full" or "small".
        batch_size: examples of a batch.
        num_steps: steps of a round.
        steps_per_execution: Keras's argument; Lockstep's side alone has it.
        autotunes: whether PyTorch compiles in the mode "max-autotune".
        checks: whether to count and to compare instead: see `Check`.
        weights: the file with the first weights, for the comparison.
    """

    case: str
    size: str
    batch_size: int
    num_steps: int
    steps_per_execution: int = 1
    autotunes: bool = False
    checks: bool = False
    weights: str = ""


@final
@dataclass(frozen=True, kw_only=True)
class Check:
    """What has to be the same on both sides.

    Attributes:
        num_parameters: the trained parameters of the model that is measured.
        forward_operations: multiplications and additions of its matrix products and convolutions, for one example,
            forward. Products of attention count whole, although half of them is masked.
        losses: of the first steps in float32 on the processor, from the same weights and batches, in the small size.
    """

    num_parameters: int
    forward_operations: int
    losses: list[float]


def read_order() -> Order:
    """Parses the program's argument."""
    return Order(**protocol.read_order())


def serve(
    order: Order,
    train: Callable[[int], float],
    *,
    begun: float,
    device: str,
    peak: Callable[[], int],
    peak_rate: float | None = None,
) -> None:
    """Takes the first steps, then a round for each line of standard input.

    Args:
        order: what to do.
        train: takes so many steps, waits for the device, and returns the last loss.
        begun: when the making of the model began, by ``time.perf_counter``.
        device: the device's name.
        peak: returns the most memory so far, in bytes.
        peak_rate: the device's published peak rate in bfloat16, in operations per second. Only Lockstep's side says it;
            None where it is not known.
    """
    train(order.steps_per_execution)
    protocol.say({"device": device, "compile_s": time.perf_counter() - begun, "peak_rate": peak_rate})
    protocol.serve_rounds(lambda: {"loss": float(train(order.num_steps)), "peak_bytes": peak()})
