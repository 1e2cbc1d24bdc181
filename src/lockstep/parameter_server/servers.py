"""All servers, as used by a worker or the coordinator: one exchange with each per step, all at the same time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, final

import numpy as np

from lockstep.errors import UnavailableError
from lockstep.parameter_server import protocol
from lockstep.parameter_server.links import Link, Message
from lockstep.parameter_server.links.client import RemoteError
from lockstep.parameter_server.protocol import (
    DENSE,
    IDS,
    ROWS,
    WANTED,
    Awaited,
    Begun,
    Expected,
    Part,
    Push,
    Pushed,
    Rate,
    Setup,
    from_fields,
    named,
    of_kind,
    to_fields,
)

LATE_ANSWER_S: Final = 1.0
"""How long to wait for the other servers' answers to a push once one server is lost, in seconds."""


@final
@dataclass(frozen=True, kw_only=True)
class Pulled:
    """The answers of all servers.

    Attributes:
        dense: the buffers of each server; empty if they were not requested. They are valid until the exchange after the
            next one begins.
        rows: for each requested table, the rows of the wanted ids, in the order of the ids. They are valid as long as
            the dense buffers.
        states: the header of each server's answer.
    """

    dense: tuple[dict[str, np.ndarray[Any, Any]], ...]
    rows: dict[str, np.ndarray[Any, Any]]
    states: tuple[Pushed, ...]

    @property
    def staleness(self) -> int:
        """The largest number of pushes that a server applied between this worker's pull and its push."""
        return max(state.staleness for state in self.states)


@final
class Servers:
    """The parameter servers of a cluster.

    Not thread-safe.

    Args:
        links: a link to each server, in the order of the servers.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        # The fields of the answers to the last messages, by server: None without an answer, empty for an error.
        self._exchange: list[Mapping[str, Any] | None] = []
        self._wanted: Mapping[str, np.ndarray[Any, Any]] = {}

    @property
    def num_servers(self) -> int:
        """The number of servers."""
        return len(self._links)

    def set_up(self, setup: Setup) -> None:
        """Tells each server what it keeps. Idempotent.

        Raises:
            RemoteError: a server already keeps something else.
            UnavailableError: a server is lost.
        """
        self._request_all(
            [Message(kind=protocol.SETUP, fields=to_fields(replace(setup, server=server))) for server in self._all]
        )

    def begin(self) -> int:
        """Begins a training.

        The servers forget what an earlier coordinator trained, so their values must be written again.

        Returns:
            The number of the first closure. Pushes of an earlier training have lower numbers.

        Raises:
            UnavailableError: a server is lost.
        """
        answers = self._request_all([Message(kind=protocol.BEGIN)] * self.num_servers)
        return max(from_fields(Begun, answer.fields).first_closure for answer in answers)

    def write(self, values: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> None:
        """Sets all dense parameters.

        Args:
            values: the buffers of each server.

        Raises:
            RemoteError: the buffers do not fit a server's variables.
            UnavailableError: a server is lost.
        """
        self._request_all([Message(kind=protocol.WRITE, arrays=named(DENSE, own)) for own in values])

    def join(self, setup: Setup) -> None:
        """Checks that this process runs the same model as the coordinator.

        Raises:
            RemoteError: it runs another model, or a server has no values yet.
            UnavailableError: a server is lost.
        """
        self._request_all([Message(kind=protocol.JOIN, fields={"signature": setup.signature})] * self.num_servers)

    def pull(
        self, *, wanted: Mapping[str, np.ndarray[Any, Any]] | None = None, is_answered_by_values: bool = True
    ) -> Pulled:
        """Pulls all dense parameters, and rows of tables.

        Args:
            wanted: the ids of the rows by table: int64[rows], ascending.
            is_answered_by_values: whether to pull the dense parameters too.

        Raises:
            RemoteError: there is no such table or row.
            UnavailableError: a server is lost.
        """
        wanted = wanted or {}
        fields = {"is_answered_by_values": is_answered_by_values}
        messages = [
            Message(kind=protocol.PULL, fields=fields, arrays=named(WANTED, self._select_all(wanted, server)))
            for server in self._all
        ]
        return self._pulled(self._request_all(messages), wanted)

    def begin_push(
        self,
        push: Push,
        *,
        gradients: Sequence[Mapping[str, np.ndarray[Any, Any]]],
        parts: Sequence[tuple[Part, ...]],
        versions: Sequence[int],
        rows: Mapping[str, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] | None = None,
        wanted: Mapping[str, np.ndarray[Any, Any]] | None = None,
    ) -> None:
        """Sends a step's gradients to the servers. `end_push` waits for the answers.

        Args:
            push: the header. The fields that differ between servers are filled in here.
            gradients: for each server, the arrays by kind (`lockstep.parameter_server.protocol.gradients_for`) and
                dtype, such as "gradient.0:float32".
            parts: for each server, the groups that its arrays are for.
            versions: for each server, its version when the values behind the gradients were pulled.
            rows: the ids and gradients of rows by table: int64[rows], ascending, and float32[rows, columns].
            wanted: the ids, by table, of the rows to pull.

        Raises:
            RemoteError: a server does not keep what is pushed.
            UnavailableError: a server is lost.
        """
        rows, wanted = rows or {}, wanted or {}
        messages: list[Message] = []
        for server in self._all:
            arrays = dict(gradients[server])
            for table, (ids, changes) in rows.items():
                mine = self._select(ids, server)
                arrays[f"{IDS}:{table}"], arrays[f"{ROWS}:{table}"] = ids[mine], changes[mine]
            arrays.update(named(WANTED, self._select_all(wanted, server)))
            header = replace(push, parts=parts[server], pulled_version=versions[server])
            messages.append(Message(kind=protocol.PUSH, fields=to_fields(header), arrays=arrays))
        self._wanted = wanted
        self._begin(messages)

    def end_push(self) -> Pulled:
        """Waits for the answers to the push that was begun, and returns them.

        Raises:
            RemoteError: a server does not keep what was pushed.
            UnavailableError: a server is lost.
        """
        return self._pulled(self._end(), self._wanted)

    def outcomes(self) -> list[Pushed | None]:
        """Returns the answers to a push for which `begin_push` or `end_push` raised an error.

        Waits up to `LATE_ANSWER_S` for them.

        Returns:
            The answer of each server; None if it has not answered, or has answered with an error.
        """
        deadline = time.monotonic() + LATE_ANSWER_S
        found: list[Pushed | None] = [None] * self.num_servers
        for index, fields in enumerate(self._exchange):
            answered = fields
            if answered is None and not self._links[index].is_lost:
                with contextlib.suppress(UnavailableError, RemoteError):
                    answered = self._links[index].end(timeout_s=max(0.0, deadline - time.monotonic())).fields
            if answered:
                found[index] = from_fields(Pushed, answered)
        return found

    def read_states(self) -> list[Mapping[str, np.ndarray[Any, Any]]]:
        """Returns all arrays that decide the servers' next dense updates.

        `lockstep.parameter_server.whole_state.gather` combines them. They are valid until the next exchange.

        Raises:
            UnavailableError: a server is lost.
        """
        return [answer.arrays for answer in self._request_all([Message(kind=protocol.STATE)] * self.num_servers)]

    def expect(self, num_pushes: int, *, step: int, on_answer: Callable[[int, int], object] = lambda *_: None) -> None:
        """Sets how many pushes make up a synchronous step from now on.

        Args:
            num_pushes: the number of pushes.
            step: the step that begins, or that is being collected; see `Expected`.
            on_answer: a function that is called for each server that has answered, before an error is raised, with the
                server's index and the number of steps that it has skipped.

        Raises:
            UnavailableError: a server is lost.
        """
        message = Message(kind=protocol.EXPECT, fields=to_fields(Expected(num_pushes=num_pushes, step=step)))
        errors: list[UnavailableError] = []
        asked: list[tuple[int, Link]] = []
        for server, link in enumerate(self._links):
            try:
                link.begin(message)
                asked.append((server, link))
            except UnavailableError as error:
                errors.append(error)
        for server, link in asked:
            try:
                awaited = from_fields(Awaited, link.end().fields)
            except UnavailableError as error:
                errors.append(error)
            else:
                on_answer(server, awaited.num_skipped_steps)  # a server reports a skip only once
        if errors:
            raise errors[0]

    def set_learning_rate(self, learning_rate: float, *, group: int, tables: Sequence[str] = ()) -> None:
        """Sets the learning rate of a group's optimizer, and of rows of tables.

        Raises:
            RemoteError: the learning rate follows a schedule.
            UnavailableError: a server is lost.
        """
        fields = to_fields(Rate(group=group, learning_rate=learning_rate, tables=tuple(tables)))
        self._request_all([Message(kind=protocol.RATE, fields=fields)] * self.num_servers)

    def clear(self) -> None:
        """Makes the servers forget what they keep. A lost server has forgotten it already."""
        for link in self._links:
            with contextlib.suppress(UnavailableError):
                link.request(Message(kind=protocol.CLEAR))

    def finish(self) -> list[int]:
        """Tells the servers that the training is done; returns the indices of those that could not be reached."""
        untold: list[int] = []
        for server, link in enumerate(self._links):
            try:
                link.request(Message(kind=protocol.DONE))
            except UnavailableError:
                untold.append(server)
        return untold

    def close(self) -> None:
        """Closes all links. Idempotent."""
        for link in self._links:
            link.close()

    @property
    def _all(self) -> range:
        return range(self.num_servers)

    def _select_all(self, ids: Mapping[str, np.ndarray[Any, Any]], server: int) -> dict[str, np.ndarray[Any, Any]]:
        return {table: wanted[self._select(wanted, server)] for table, wanted in ids.items()}

    def _select(self, ids: np.ndarray[Any, Any], server: int) -> Any:
        """Returns an index that selects a server's ids.

        A slice if it is the only server, because that copies nothing.
        """
        return slice(None) if self.num_servers == 1 else ids % self.num_servers == server

    def _request_all(self, messages: Sequence[Message]) -> list[Message]:
        self._begin(messages)
        return self._end()

    def _begin(self, messages: Sequence[Message]) -> None:
        self._exchange = []
        for link, message in zip(self._links, messages, strict=True):
            link.begin(message)
            self._exchange.append(None)

    def _end(self) -> list[Message]:
        answers: list[Message] = []
        for index, link in enumerate(self._links):
            self._exchange[index] = {}  # in case it answers with an error
            try:
                answers.append(link.end())
            except UnavailableError:
                self._exchange[index] = None
                raise
            self._exchange[index] = answers[-1].fields
        return answers

    def _pulled(self, answers: Sequence[Message], wanted: Mapping[str, np.ndarray[Any, Any]]) -> Pulled:
        rows: dict[str, np.ndarray[Any, Any]] = {}
        for table, ids in wanted.items():
            parts = [of_kind(ROWS, answer.arrays)[table] for answer in answers]
            if len(parts) == 1:
                rows[table] = parts[0]
                continue
            rows[table] = np.empty((len(ids), parts[0].shape[1]), parts[0].dtype)
            for server, part in enumerate(parts):
                rows[table][self._select(ids, server)] = part
        return Pulled(
            dense=tuple(of_kind(DENSE, answer.arrays) for answer in answers),
            rows=rows,
            states=tuple(from_fields(Pushed, answer.fields) for answer in answers),
        )


def is_missing_values(error: RemoteError) -> bool:
    """Whether an error says that a server has no values yet: it is new, or is being restored from a checkpoint."""
    return error.error == "WrongStateError"
