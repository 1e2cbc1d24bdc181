"""Machines without machines, and what every provider of them must do, as tests."""

from __future__ import annotations

import abc
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, final

import psutil
import pytest
from typing_extensions import override

from lockstep.clusters.machines import AbstractMachines
from lockstep.clusters.machines.local import MACHINE_VARIABLE
from lockstep.errors import EngineError

TIMEOUT_S: Final = 60.0


@final
class FakeMachines(AbstractMachines):
    """Machines that are but names; passes the conformance suite. Thread-safe.

    What is set by its attributes holds from the next call on.

    Attributes:
        refusals: why the provider has none of a type, by type; it refuses to create such.
        lost_answers: types that are created, of which the provider's answer does not arrive.
        kept: why a machine cannot be removed, by name.
        linger: so often a machine is seen after it was removed.
        withdrawn: why machines of a type that were seen to come up are gone again before the request for them is
            answered, by type.
        hold: types whose machines come up and do not join from now on; they do once the type is not held any more.
        is_unreachable: whether the provider does not answer.
        troubles: why machines are not up yet, by name.
        num_created: how many were created, by type.
    """

    def __init__(self) -> None:
        self.refusals: dict[str, str] = {}
        self.lost_answers: set[str] = set()
        self.kept: dict[str, str] = {}
        self.linger = 0
        self.withdrawn: dict[str, str] = {}
        self.hold: set[str] = set()
        self.is_unreachable = False
        self.troubles: dict[str, str] = {}
        self.num_created: dict[str, int] = {}
        self._machines: dict[str, str] = {}
        self._held: set[str] = set()
        self._going: dict[str, int] = {}
        self._lock = threading.Lock()
        self._looked = threading.Condition(self._lock)
        self._num_looks = 0

    @property
    def joined(self) -> dict[str, str]:
        """The machines whose nodes have joined, with their types."""
        with self._lock:
            return {
                name: kind
                for name, kind in self._machines.items()
                if kind not in self.withdrawn and not (kind in self.hold and name in self._held)
            }

    def lose(self, name: str) -> None:
        """Acts as a provider that took a machine back, or one that broke."""
        with self._lock:
            del self._machines[name]

    @override
    def names(self) -> frozenset[str]:
        with self._lock:
            self._check()
            found = frozenset((*self._machines, *self._going))
            self._going = {name: left - 1 for name, left in self._going.items() if left > 1}
            self._num_looks += 1
            self._looked.notify_all()
            return found

    @override
    def words(self, name: str) -> str:
        return self.troubles.get(name, "")

    @override
    def create(self, name: str, *, node_type: str) -> None:
        with self._lock:
            self._check()
            if node_type in self.refusals:
                raise EngineError(self.refusals[node_type])
            if name not in self._machines:
                self._machines[name] = node_type
                if node_type in self.hold:
                    self._held.add(name)
                self.num_created[node_type] = self.num_created.get(node_type, 0) + 1
            if node_type in self.lost_answers:
                raise EngineError("timed out")
            if node_type in self.withdrawn:
                self._wait_for_looks(1)
                del self._machines[name]
                self._wait_for_looks(2)
                raise EngineError(self.withdrawn[node_type])

    @override
    def remove(self, name: str) -> None:
        with self._lock:
            self._check()
            if name in self.kept:
                raise EngineError(self.kept[name])
            if self._machines.pop(name, None) is not None and self.linger:
                self._going[name] = self.linger

    def _wait_for_looks(self, number: int) -> None:
        wanted = self._num_looks + number
        self._looked.wait_for(lambda: self._num_looks >= wanted, timeout=TIMEOUT_S)

    def _check(self) -> None:
        if self.is_unreachable:
            raise EngineError("the provider does not answer")


def machine_of(pid: int) -> str:
    """Returns the name of the local machine on which a program runs.

    Args:
        pid: the program's process; it is told nothing of it, whoever started it is.
    """
    marks = (parent.environ().get(MACHINE_VARIABLE) for parent in psutil.Process(pid).parents())
    return Path(next(mark for mark in marks if mark is not None)).stem


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to it"
        time.sleep(0.05)


class AbstractMachinesConformance(abc.ABC):
    """Subclass it, and give it machines of a cluster that has none."""

    NODE_TYPE: str = "cpu"

    @abc.abstractmethod
    def machines(self) -> AbstractMachines:
        """Returns the machines under test."""

    @pytest.fixture
    def name(self) -> str:
        """A machine's name."""
        return "test-cpu-0-0a1b2c"

    def test_a_machine_comes_and_goes_by_its_name(self, name: str) -> None:
        machines = self.machines()
        assert name not in machines.names()
        machines.create(name, node_type=self.NODE_TYPE)
        _wait_for(lambda: name in machines.names())
        machines.remove(name)
        _wait_for(lambda: name not in machines.names())

    def test_creating_twice_is_creating_once(self, name: str) -> None:
        machines = self.machines()
        for _ in range(2):
            machines.create(name, node_type=self.NODE_TYPE)
            _wait_for(lambda: name in machines.names())
        machines.remove(name)
        _wait_for(lambda: name not in machines.names())

    def test_removing_what_is_not_there_does_nothing(self, name: str) -> None:
        self.machines().remove(name)
