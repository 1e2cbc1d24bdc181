"""The life of a worker: it serves the coordinator from the first closure until the training is over."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, Final, TypeAlias

from lockstep.errors import UnavailableError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.coordination.messages import GO_ON, REJECTED_MODEL, STAGE
from lockstep.parameter_server.coordination.working import AbstractFunction, Worker
from lockstep.parameter_server.links import Message
from lockstep.parameter_server.links.client import RemoteError

LOGGER: Final = logging.getLogger(__name__)

FunctionContext: TypeAlias = "AbstractContextManager[tuple[Mapping[str, AbstractFunction], Callable[[list[Any]], Any]]]"
"""A context manager. Its value is the functions that closures may call, by name, and a function that returns this
process's object for a reference in arguments.
"""


def work_until_the_end(cluster: Cluster, open_functions: Callable[[], FunctionContext], *, stage: int = 0) -> Message:
    """Runs closures for the coordinator. If that is lost, waits for the next one and runs closures for it.

    Args:
        cluster: the cluster with the coordinator.
        open_functions: a function that is called for each coordinator, and returns the context in which closures run.
        stage: the stage that the script of this process is in.

    Returns:
        The coordinator's message with the results of this stage, sent when it went on to the next stage of the script.

    Raises:
        SystemExit: the training is over; with code 0.
        UnavailableError: the coordinator, or a server, does not start in time.
        RemoteError: this process runs another model, or another process has taken its place.
    """
    while True:
        with contextlib.closing(cluster.reach_chief()) as link, contextlib.ExitStack() as stack:
            try:
                found = link.request(Message(kind=STAGE, fields={"stage": stage}))
            except UnavailableError as error:
                LOGGER.warning(
                    "%s has lost the coordinator, and waits for it to come back: %s", cluster.process_name, error
                )
                continue
            if found.kind == GO_ON:
                return found
            try:
                functions, resolve = stack.enter_context(open_functions())
            except RemoteError as error:
                link.request(Message(kind=REJECTED_MODEL, fields={"text": str(error)}))  # the coordinator logs it too
                raise
            worker = Worker(link, functions=functions, resolve=resolve)
            try:
                num_closures = worker.run()
            except UnavailableError as error:
                if not link.is_lost:  # a server has not come back in time
                    raise
                LOGGER.warning(
                    "%s has lost the coordinator, and waits for it to come back: %s", cluster.process_name, error
                )
            else:
                LOGGER.info("%s has run %d closures: the training is over", cluster.process_name, num_closures)
                if worker.last_message.kind == GO_ON:
                    return worker.last_message
                raise SystemExit(0)
