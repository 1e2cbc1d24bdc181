"""What answers the bodies of requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Self

from lockstep.serving.batch_counts import BatchCounts
from lockstep.serving.protocols.inference_paths import InferencePath
from lockstep.serving.protocols.questions import Content


class AbstractAnswering(ABC):
    """Answers requests, on one event loop. Use it as an asynchronous context manager."""

    @property
    @abstractmethod
    def num_requests(self) -> int:
        """The number of requests so far."""

    @property
    @abstractmethod
    def batches(self) -> BatchCounts:
        """The counts of the runs of the model, or the calls of the routine, so far."""

    @property
    @abstractmethod
    def num_waiting(self) -> int:
        """The number of requests that wait for a run."""

    @property
    @abstractmethod
    def run_s(self) -> float:
        """How long the current run has taken so far, the longest of them, in seconds; 0 if nothing runs."""

    @abstractmethod
    async def answer(self, body: bytes) -> Content:
        """Answers ``{"instances": [...]}`` with ``{"predictions": [...]}``.

        If the call is cancelled before its run begins, it does not run.

        Raises:
            LockstepError: the request is wrong, or cannot be answered; the error says the HTTP status.
        """

    @abstractmethod
    async def infer(self, body: bytes, path: InferencePath, *, header_length: bytes | None) -> Content:
        """Answers a request of the Open Inference Protocol; see `answer`.

        Args:
            body: the body of the request.
            path: the path of the request.
            header_length: the header with the length of the JSON; None if the whole body is JSON.
        """

    @abstractmethod
    def describe(self, path: InferencePath) -> Content:
        """Returns the metadata of the model, in the form of the Open Inference Protocol, under the name of a path.

        Raises:
            InvalidInputError: there is none, because a routine answers.
        """

    @abstractmethod
    async def __aenter__(self) -> Self:
        """Begins to answer."""

    @abstractmethod
    async def __aexit__(self, *_: object) -> None:
        """Cancels what waits, and waits for what runs."""
