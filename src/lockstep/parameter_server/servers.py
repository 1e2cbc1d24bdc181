"""All servers as a worker, or the coordinator, sees them: one exchange a step with each, at the same time."""

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
"""How long what other servers have to say of a push is waited for once one of them is lost."""


@final
@dataclass(frozen=True, kw_only=True)
class Pulled:
    """What the servers gave.

    Attributes:
        dense: each server's buffers; empty where they were not asked for. They may be read until the exchange after the
            next begins.
        rows: for each table that was asked for, the rows of the wanted ids, in the ids' order. They may be read as
            long as the dense ones.
        states: how each server is.
    """

    dense: tuple[dict[str, np.ndarray[Any, Any]], ...]
    rows: dict[str, np.ndarray[Any, Any]]
    states: tuple[Pushed, ...]

    @property
    def staleness(self) -> int:
        """How many pushes were applied between the pull of what a push's gradients are of and the push: the most."""
        return max(state.staleness for state in self.states)


@final
class Servers:
    """The parameter servers of a cluster.

    Not safe for several threads.

    Args:
        links: one to each, in their order.
    """

    def __init__(self, links: Sequence[Link]) -> None:
        self._links = tuple(links)
        self._exchange: list[Mapping[str, Any] | None] = []  # what those have answered whom the last messages went to
        self._wanted: Mapping[str, np.ndarray[Any, Any]] = {}

    @property
    def num_servers(self) -> int:
        """How many there are."""
        return len(self._links)

    def set_up(self, setup: Setup) -> None:
        """Tells each server what it keeps. Idempotent.

        Raises:
            RemoteError: one of them keeps something else already.
            UnavailableError: one of them is gone.
        """
        self._ask(
            [Message(kind=protocol.SETUP, fields=to_fields(replace(setup, server=server))) for server in self._all]
        )

    def begin(self) -> int:
        """Begins a training: what an earlier coordinator has trained is forgotten, and must be written.

        Returns:
            The number of its first closure: pushes of an earlier training's are below it.

        Raises:
            UnavailableError: a server is gone.
        """
        answers = self._ask([Message(kind=protocol.BEGIN)] * self.num_servers)
        return max(from_fields(Begun, answer.fields).first_closure for answer in answers)

    def write(self, values: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> None:
        """Sets all dense parameters.

        Args:
            values: each server's buffers.

        Raises:
            RemoteError: they are not the servers'.
            UnavailableError: one of them is gone.
        """
        self._ask([Message(kind=protocol.WRITE, arrays=named(DENSE, own)) for own in values])

    def join(self, setup: Setup) -> None:
        """Shows that this process runs the same model.

        Raises:
            RemoteError: it does not.
            UnavailableError: a server is gone.
        """
        self._ask([Message(kind=protocol.JOIN, fields={"signature": setup.signature})] * self.num_servers)

    def pull(
        self, *, wanted: Mapping[str, np.ndarray[Any, Any]] | None = None, is_answered_by_values: bool = True
    ) -> Pulled:
        """Brings all dense parameters, and rows of tables.

        Args:
            wanted: int64[rows] of ids by table, rising.
            is_answered_by_values: whether the dense ones are to come too.

        Raises:
            RemoteError: there is no such table, or row.
            UnavailableError: a server is gone.
        """
        wanted = wanted or {}
        fields = {"is_answered_by_values": is_answered_by_values}
        messages = [
            Message(kind=protocol.PULL, fields=fields, arrays=named(WANTED, self._own(wanted, server)))
            for server in self._all
        ]
        return self._pulled(self._ask(messages), wanted)

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
        """Sends a step's gradients to the servers; `end_push` waits for what comes back.

        Args:
            push: what it is of; what differs from server to server is filled in here.
            gradients: for each server its arrays, by kind (`lockstep.parameter_server.protocol.gradients_for`) and
                dtype: "gradient.0:float32".
            parts: for each server, what they are of.
            versions: for each server, its version when the values that the gradients are of were pulled.
            rows: ids and gradients of rows by table: int64[rows], rising, and float32[rows, columns].
            wanted: ids by table whose rows are to come back.

        Raises:
            RemoteError: what is pushed is not the servers'.
            UnavailableError: a server is gone.
        """
        rows, wanted = rows or {}, wanted or {}
        messages: list[Message] = []
        for server in self._all:
            arrays = dict(gradients[server])
            for table, (ids, changes) in rows.items():
                mine = self._mine(ids, server)
                arrays[f"{IDS}:{table}"], arrays[f"{ROWS}:{table}"] = ids[mine], changes[mine]
            arrays.update(named(WANTED, self._own(wanted, server)))
            header = replace(push, parts=parts[server], pulled_version=versions[server])
            messages.append(Message(kind=protocol.PUSH, fields=to_fields(header), arrays=arrays))
        self._wanted = wanted
        self._begin(messages)

    def end_push(self) -> Pulled:
        """Returns what the servers answer to the push that was begun.

        Raises:
            RemoteError: what was pushed is not the servers'.
            UnavailableError: a server is gone.
        """
        return self._pulled(self._end(), self._wanted)

    def outcomes(self) -> list[Pushed | None]:
        """Returns what became of a push of which `begin_push` or `end_push` has raised an error; waits, but not long.

        Returns:
            What each server says of it; None where it has not answered.
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
        """Returns all that decides the servers' next dense updates; see `lockstep.parameter_server.whole_state.gather`.

        The arrays may be read until the next exchange.

        Raises:
            UnavailableError: a server is gone.
        """
        return [answer.arrays for answer in self._ask([Message(kind=protocol.STATE)] * self.num_servers)]

    def expect(self, num_pushes: int, *, step: int, on_answer: Callable[[int, int], object] = lambda *_: None) -> None:
        """Says how many pushes make a synchronous step from now on.

        Args:
            num_pushes: so many.
            step: the step that begins, or is being collected; see `Expected`.
            on_answer: called for each server that has answered, before an error is raised, with its number and how many
                steps it has gone on without.

        Raises:
            UnavailableError: a server is gone.
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
                on_answer(server, awaited.num_left_out)  # a server says it once
        if errors:
            raise errors[0]

    def set_learning_rate(self, learning_rate: float, *, group: int, tables: Sequence[str] = ()) -> None:
        """Sets the learning rate of a group's optimizer, and of rows of tables.

        Raises:
            RemoteError: it follows a schedule.
            UnavailableError: a server is gone.
        """
        fields = to_fields(Rate(group=group, learning_rate=learning_rate, tables=tuple(tables)))
        self._ask([Message(kind=protocol.RATE, fields=fields)] * self.num_servers)

    def clear(self) -> None:
        """Tells the servers to forget what they keep; one that is gone has forgotten it."""
        for link in self._links:
            with contextlib.suppress(UnavailableError):
                link.request(Message(kind=protocol.CLEAR))

    def finish(self) -> list[int]:
        """Tells the servers that the training is done; returns those that could not be told."""
        untold: list[int] = []
        for server, link in enumerate(self._links):
            try:
                link.request(Message(kind=protocol.DONE))
            except UnavailableError:
                untold.append(server)
        return untold

    def close(self) -> None:
        """Hangs up. Idempotent."""
        for link in self._links:
            link.close()

    @property
    def _all(self) -> range:
        return range(self.num_servers)

    def _own(self, ids: Mapping[str, np.ndarray[Any, Any]], server: int) -> dict[str, np.ndarray[Any, Any]]:
        return {table: wanted[self._mine(wanted, server)] for table, wanted in ids.items()}

    def _mine(self, ids: np.ndarray[Any, Any], server: int) -> Any:
        """Returns an index of a server's ids; all of them where it is the only one, which copies nothing."""
        return slice(None) if self.num_servers == 1 else ids % self.num_servers == server

    def _ask(self, messages: Sequence[Message]) -> list[Message]:
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
            self._exchange[index] = {}  # in case that it answers by an error
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
                rows[table][self._mine(ids, server)] = part
        return Pulled(
            dense=tuple(of_kind(DENSE, answer.arrays) for answer in answers),
            rows=rows,
            states=tuple(from_fields(Pushed, answer.fields) for answer in answers),
        )


def lacks_values(error: RemoteError) -> bool:
    """Whether a server's error says that it has no values yet: it is new, or is being given a checkpoint's."""
    return error.error == "WrongStateError"
