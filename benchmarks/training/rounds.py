"""How a side talks to ``gpu.py``: one line of JSON when it is ready, then one for each line that it reads."""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Final, final

MARK: Final = "gpu.py: "
"""Begins the lines that are meant: libraries may print others."""
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

    def text(self) -> str:
        """Returns it as the argument of a side's program."""
        return json.dumps(asdict(self))


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


@final
@dataclass(frozen=True, kw_only=True)
class Ready:
    """A side after its first steps.

    Attributes:
        device: the device's own name.
        compile_s: from the model's making to the end of its first step, in seconds.
    """

    device: str
    compile_s: float


@final
@dataclass(frozen=True, kw_only=True)
class Round:
    """What a side says after a round.

    Attributes:
        wall_s: seconds of the steps, until the device was done.
        peak_bytes: the most memory that the process has had so far: of the GPU, or the process's own.
        loss: the loss after the last step.
    """

    wall_s: float
    peak_bytes: int
    loss: float


def read_order() -> Order:
    """Parses the program's argument."""
    return Order(**json.loads(sys.argv[1]))


def tell(said: Check | Ready | Round) -> None:
    """Prints a line for ``gpu.py``."""
    print(MARK + json.dumps(asdict(said)), flush=True)


def own_peak_bytes() -> int:
    """Returns the most memory that this process has had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def serve(order: Order, train: Callable[[int], float], *, begun: float, device: str, peak: Callable[[], int]) -> None:
    """Takes the first steps, then a round for each line of standard input.

    Args:
        order: what to do.
        train: takes so many steps, waits for the device, and returns the last loss.
        begun: when the making of the model began, by ``time.perf_counter``.
        device: the device's name.
        peak: returns the most memory so far, in bytes.
    """
    train(order.steps_per_execution)
    tell(Ready(device=device, compile_s=time.perf_counter() - begun))
    train(order.num_steps)  # warm-up
    for _ in sys.stdin:
        started = time.perf_counter()
        loss: Any = train(order.num_steps)
        wall_s = time.perf_counter() - started
        tell(Round(wall_s=wall_s, peak_bytes=peak(), loss=float(loss)))
