"""A fake provider of machines, and the conformance suite of providers."""

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
    """A fake provider whose machines exist only by name. It passes the conformance suite. Thread-safe.

    Changes of its attributes apply from the next call on.

    Attributes:
        refusals: the error messages of types that the provider refuses to create, by type.
        lost_answers: the types whose machines are created, but for which the provider's response is lost.
        kept: the error messages of machines that cannot be removed, by name.
        linger: the number of listings in which a machine still appears after it was removed.
        withdrawn: the error messages of types whose machines appear, but are gone before the creation request returns,
            by type.
        hold: the types whose new machines appear but do not join. They join once their type is removed from the set.
        is_unreachable: whether the provider does not respond.
        troubles: the reasons why machines are not up yet, by name.
        num_created: the number of created machines, by type.
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
        self._lingering: dict[str, int] = {}
        self._lock = threading.Lock()
        self._listed = threading.Condition(self._lock)
        self._num_listings = 0

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
        """Simulates a machine that the provider took back, or that broke."""
        with self._lock:
            del self._machines[name]

    @override
    def names(self) -> frozenset[str]:
        with self._lock:
            self._check()
            found = frozenset((*self._machines, *self._lingering))
            self._lingering = {name: left - 1 for name, left in self._lingering.items() if left > 1}
            self._num_listings += 1
            self._listed.notify_all()
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
                self._wait_for_listings(1)
                del self._machines[name]
                self._wait_for_listings(2)
                raise EngineError(self.withdrawn[node_type])

    @override
    def remove(self, name: str) -> None:
        with self._lock:
            self._check()
            if name in self.kept:
                raise EngineError(self.kept[name])
            if self._machines.pop(name, None) is not None and self.linger:
                self._lingering[name] = self.linger

    def _wait_for_listings(self, number: int) -> None:
        wanted = self._num_listings + number
        self._listed.wait_for(lambda: self._num_listings >= wanted, timeout=TIMEOUT_S)

    def _check(self) -> None:
        if self.is_unreachable:
            raise EngineError("the provider does not answer")


def machine_of(pid: int) -> str:
    """Returns the name of the local machine on which a program runs.

    Args:
        pid: the program's process id. The name is in the environment of the processes that started it, not in its own.
    """
    marks = (parent.environ().get(MACHINE_VARIABLE) for parent in psutil.Process(pid).parents())
    return Path(next(mark for mark in marks if mark is not None)).stem


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + TIMEOUT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come to it"
        time.sleep(0.05)


class AbstractMachinesConformance(abc.ABC):
    """The conformance suite of providers. A subclass returns machines of a cluster that has none yet."""

    NODE_TYPE: str = "cpu"

    @abc.abstractmethod
    def machines(self) -> AbstractMachines:
        """Returns the machines under test."""

    @pytest.fixture
    def name(self) -> str:
        """The name of a machine."""
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
