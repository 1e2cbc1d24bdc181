"""What answers the bodies of requests."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Final, Self, final

from lockstep.serving.batch_counts import BatchCounts
from lockstep.serving.protocols.inference_paths import InferencePath
from lockstep.serving.protocols.questions import Content

MAX_RUN_S: Final = 60.0
"""How long one run may take, in seconds. After that, the server counts as stuck and is replaced."""


@final
@dataclass(frozen=True, kw_only=True)
class ContainerServer:
    """A server in a container.

    Attributes:
        url: the URL of its port, such as ``http://127.0.0.1:40123``.
        predict_route: the path that takes ``{"instances": [...]}`` with POST.
        health_route: the path that answers GET with status 200 when it can answer requests.
    """

    url: str
    predict_route: str
    health_route: str


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
    def is_stuck(self) -> bool:
        """Whether a run takes longer than `MAX_RUN_S`, so that it has to be expected never to end."""

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
