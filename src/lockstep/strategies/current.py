"""Which strategy and which replica code runs under, by the names of ``tf.distribute``."""

from __future__ import annotations

import functools

from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.ground import entered_ground
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.loops.replica import ReplicaContext, active_replica_context
from lockstep.strategies.one_device import OneDeviceStrategy


def has_strategy() -> bool:
    """Whether a strategy's scope or a replica's step was entered, by the name of ``tf.distribute``."""
    return entered_ground() is not None or active_replica_context() is not None


def get_strategy() -> AbstractStrategy:
    """Returns the strategy whose scope, or step, was entered, by the name of ``tf.distribute``.

    Returns:
        The current strategy; outside any, one on the first device, ``tf.distribute``'s default strategy.
    """
    context = active_replica_context()
    found = entered_ground() if context is None else context.strategy
    if found is None:
        return _default_strategy()
    assert isinstance(found, AbstractStrategy), "no other ground is entered"
    return found


@functools.cache
def _default_strategy() -> AbstractStrategy:
    """Made once: what runs under it is compiled for it."""
    return OneDeviceStrategy()


def get_replica_context() -> ReplicaContext | None:
    """Returns the replica that this code runs for, by the name of ``tf.distribute``.

    Returns:
        The context within ``strategy.run``; None in a strategy's scope outside it, where one program stands for all
        replicas; outside any strategy the context of a single replica.
    """
    context = active_replica_context()
    if context is not None or entered_ground() is not None:
        return context
    return ReplicaContext(strategy=None, num_replicas_in_sync=1, options=CommunicationOptions())


def in_cross_replica_context() -> bool:
    """Whether this code stands for all replicas of a strategy, by the name of ``tf.distribute``."""
    return get_replica_context() is None
