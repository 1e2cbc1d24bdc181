"""What compiling a step for a target told; it crosses from the process that compiled it to the one that asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from pydantic import TypeAdapter

from lockstep.planning.hlo import Collective


@final
@dataclass(frozen=True, kw_only=True)
class Memory:
    """One device's memory while the step runs, in bytes.

    Attributes:
        arguments: what the step is given, by label ("parameters", "optimizer", "other state", "batch").
        arguments_bytes: all of them together, as the compiler says.
        padded: whether `arguments` include the padding to the memory's tiles, which a compiled program tells.
        temporaries: activations, gradients and whatever else lives within the step; None where it was not compiled.
        results: what it gives back in memory of its own: not the new state, which takes the old one's place.
        program: the program itself.
    """

    arguments: dict[str, int]
    arguments_bytes: int
    padded: bool
    temporaries: int | None = None
    results: int | None = None
    program: int | None = None

    @property
    def total(self) -> int:
        """All that is known, together."""
        return self.arguments_bytes + sum(part or 0 for part in (self.temporaries, self.results, self.program))


@final
@dataclass(frozen=True, kw_only=True)
class Work:
    """What one device does in a step.

    Attributes:
        operations: floating-point operations: XLA's count, and the matrix products and convolutions of loops for each
            further time that they run.
        xla_operations: XLA's count: of a loop, its body once.
        xla_bytes: bytes read and written by all instructions, as XLA counts them, each loop's body once.
        state_bytes: bytes that a step cannot but move between the device's processor and its memory: arguments in,
            results out, but for what it hands on unchanged.
        collectives: what is sent to other devices.
    """

    operations: float
    xla_operations: float
    xla_bytes: float
    state_bytes: int
    collectives: tuple[Collective, ...]


@final
@dataclass(frozen=True, kw_only=True)
class Measurement:
    """A step, compiled for a target and not run.

    Attributes:
        program: what it is, such as "fit of resnet".
        num_devices: over how many devices it runs.
        num_rows: rows of its global batch.
        num_steps: steps of an epoch; None where nobody knows.
        matrix_operations: operations of the matrix products and convolutions of the whole step, over all devices; what
            several of them repeat counts once.
        memory: what it takes of one device's memory.
        work: what one device does; None where the step does not fit.
        refusal: why the compiler refused it, if it did for want of memory.
        compile_s: how long the compiler took.
        versions: of the compiler's parts.
    """

    program: str
    num_devices: int
    num_rows: int
    num_steps: int | None
    matrix_operations: int
    memory: Memory
    work: Work | None
    refusal: str | None
    compile_s: float
    versions: dict[str, str]


@final
@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why there is no measurement.

    Attributes:
        kind: name of a class of `lockstep.errors`.
        message: its message.
    """

    kind: str
    message: str


OUTCOME: Final = TypeAdapter[Measurement | Failure](Measurement | Failure)
"""Either, as JSON."""
