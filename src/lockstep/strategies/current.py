"""Functions that return the current strategy and the current replica. The names are ``tf.distribute``'s."""

from __future__ import annotations

import functools

from lockstep.strategies.base import AbstractStrategy
from lockstep.strategies.ground import entered_ground
from lockstep.strategies.loops.collectives import CommunicationOptions
from lockstep.strategies.loops.replica import ReplicaContext, active_replica_context
from lockstep.strategies.one_device import OneDeviceStrategy


def has_strategy() -> bool:
    """Whether this code runs in a strategy's scope or in a replica's step. The name is from ``tf.distribute``."""
    return entered_ground() is not None or active_replica_context() is not None


def get_strategy() -> AbstractStrategy:
    """Returns the strategy in whose scope or step this code runs. The name is from ``tf.distribute``.

    Returns:
        The current strategy. Outside of any strategy, a strategy on the first device, as ``tf.distribute``'s default
        strategy.
    """
    context = active_replica_context()
    found = entered_ground() if context is None else context.strategy
    if found is None:
        return _default_strategy()
    assert isinstance(found, AbstractStrategy), "no other ground is entered"
    return found


@functools.cache
def _default_strategy() -> AbstractStrategy:
    """Returns the default strategy. It is created once, because code that runs under it is compiled for it."""
    return OneDeviceStrategy()


def get_replica_context() -> ReplicaContext | None:
    """Returns the context of the replica that this code runs for. The name is from ``tf.distribute``.

    Returns:
        Within ``strategy.run``, the replica's context. Otherwise, None in a strategy's scope, where one program
        represents all replicas. Outside of any strategy, the context of a single replica.
    """
    context = active_replica_context()
    if context is not None or entered_ground() is not None:
        return context
    return ReplicaContext(strategy=None, num_replicas_in_sync=1, options=CommunicationOptions())


def in_cross_replica_context() -> bool:
    """Whether this code represents all replicas of a strategy. The name is from ``tf.distribute``."""
    return get_replica_context() is None
