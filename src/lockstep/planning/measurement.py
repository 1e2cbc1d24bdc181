"""The result of compiling a step for a target, which the planning process passes to its parent as JSON."""

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
        arguments: the sizes of the step's arguments, by label ("parameters", "optimizer", "other state", "batch").
        arguments_bytes: the size of all arguments together, as the compiler reports it.
        whole: the sizes of one whole copy of the arguments, over all devices and without padding, by label.
        padded: whether ``arguments`` includes the padding to the memory's tiles, which only a compiled program shows.
        temporaries: the size of activations, gradients and all else that exists only within the step; None if the step
            was not compiled.
        results: the size of results in memory of their own, without the new state, which replaces the old one in place.
        program: the size of the program itself.
        peak: the most memory that is in use at one time, without the program, as the compiler reports it; None if it
            does not. Temporaries may use memory that arguments no longer need, so this is less than the sum.
    """

    arguments: dict[str, int]
    arguments_bytes: int
    padded: bool
    whole: dict[str, int]
    temporaries: int | None = None
    results: int | None = None
    program: int | None = None
    peak: int | None = None

    @property
    def total(self) -> int:
        """The most memory that is in use at one time; the sum of all known sizes if the compiler does not report it."""
        together = self.arguments_bytes + (self.temporaries or 0) + (self.results or 0)
        return (self.peak or together) + (self.program or 0)

    @property
    def reused(self) -> int:
        """The part of the sum of all sizes that is memory which two groups use one after the other."""
        together = self.arguments_bytes + (self.temporaries or 0) + (self.results or 0)
        return max(0, together - (self.peak or together))


@final
@dataclass(frozen=True, kw_only=True)
class Work:
    """The work of one device in a step.

    Attributes:
        operations: the number of floating-point operations: XLA's count, plus the matrix products and convolutions in
            loops for each repetition of the loop.
        xla_operations: XLA's count of floating-point operations, which counts the body of a loop once.
        xla_bytes: the bytes that all instructions read and write, as XLA counts them, with the body of a loop once.
        state_bytes: the minimum number of bytes to move between the device's processor and its memory: arguments read
            and results written, without values that the step returns unchanged.
        collectives: the communication with other devices.
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
        program: the name of the program, such as "fit of resnet".
        num_devices: the number of devices on which the step runs.
        num_rows: the number of rows of the global batch.
        num_steps: the number of steps in an epoch; None if it is not known.
        matrix_operations: the number of operations in the matrix products and convolutions of the whole step, over all
            devices. Work that several devices repeat counts once.
        memory: the memory that the step needs on one device.
        work: the work of one device; None if the step does not fit.
        refusal: the compiler's message if the step does not fit into memory; None if it fits.
        compile_s: the time that the compiler took, in seconds.
        versions: the versions of JAX and its compiler, by package.
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
    """The reason why there is no measurement.

    Attributes:
        kind: the name of an error class of `lockstep.errors`.
        message: the message of the error.
    """

    kind: str
    message: str


OUTCOME: Final = TypeAdapter[Measurement | Failure](Measurement | Failure)
"""Reads and writes a `Measurement` or a `Failure` as JSON."""
