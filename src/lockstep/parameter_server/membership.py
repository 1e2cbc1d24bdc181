"""The role of this process in the cluster, and what it shares with the others; ``fit`` and closures build on it."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

from lockstep.errors import WrongStateError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.compression import Compression
from lockstep.parameter_server.coordination.chief import Chief
from lockstep.parameter_server.coordination.lifetime import FunctionContext, work_until_the_end
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.links import Message
from lockstep.parameter_server.model_setup import ServedModel, describe_model
from lockstep.parameter_server.placement import Partitioner
from lockstep.parameter_server.protocol import Mode
from lockstep.parameter_server.stages import Stages
from lockstep.processes.exits import finish_at_exit
from lockstep.strategies.input import InputContext


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """How the cluster trains.

    Attributes:
        mode: when the servers apply pushes.
        max_lead: the number of steps that a worker may be ahead of the slowest one; None for no limit.
        num_backups: the number of workers whose pushes a synchronous step need not wait for.
        overlaps: whether a step begins while the previous push is still being sent.
        partitioner: the function that decides how variables are cut; None to keep them whole.
        compression: how pushes are compressed; None to send them whole.
    """

    mode: Mode
    max_lead: int | None
    num_backups: int
    overlaps: bool
    partitioner: Partitioner | None
    compression: Compression | None = None

    @property
    def is_synchronous(self) -> bool:
        """Whether all workers do each step together."""
        return self.mode is Mode.SYNCHRONOUS


@final
class Member:
    """A coordinator, a worker or an evaluator of a cluster.

    Args:
        cluster: the processes, and which of them this process is.
        options: how the cluster trains.
        layout: the layout of the strategy.

    Attributes:
        cluster: the processes, and which of them this process is.
        options: how the cluster trains.
        layout: the layout of the strategy.
        stages: the stage that the script of this process is in.
        chief: in the coordinator, its control of the cluster; None before the first ``fit`` or closure.
        trains_by_fit: whether ``fit`` created the chief, rather than closures.
    """

    def __init__(self, cluster: Cluster, *, options: Options, layout: ServedLayout) -> None:
        self.cluster = cluster
        self.options = options
        self.layout = layout
        self.stages = Stages()
        self.chief: Chief | None = None
        self.trains_by_fit = False

    @property
    def role(self) -> str:
        """This process's role: "chief", "master", "worker" or "evaluator"."""
        return self.cluster.topology.task.role

    @property
    def index(self) -> int:
        """This process's index among those of its role."""
        return self.cluster.topology.task.index

    @property
    def context(self) -> InputContext:
        """This process's position among the processes that read input."""
        return InputContext(
            num_input_pipelines=self.cluster.num_workers,
            input_pipeline_id=self.index if self.role == "worker" else 0,
            num_replicas_in_sync=self.cluster.num_workers * self.layout.num_replicas,
        )

    @property
    def dismissed_workers(self) -> Collection[str] | None:
        """In the coordinator, the workers that were told that the training is over; None if no training has begun."""
        return None if self.chief is None else self.chief.dispatcher.dismissed

    def describe(
        self, variables: Sequence[Any], *, optimizers: Sequence[Any], is_kept: Callable[[Any], bool] | None = None
    ) -> ServedModel:
        """Decides where variables are kept; see `describe_model`."""
        return describe_model(
            variables,
            optimizers=optimizers,
            embeddings=self.layout.embeddings,
            num_servers=self.cluster.num_servers,
            partitioner=self.options.partitioner,
            mode=self.options.mode,
            is_kept=is_kept,
        )

    def begin_coordination(self, served: ServedModel, *, is_for_fit: bool) -> Chief:
        """In the coordinator, sets up the servers, and accepts workers from now on.

        Args:
            served: what the servers are to keep.
            is_for_fit: whether ``fit`` trains the model, rather than closures.

        Raises:
            WrongStateError: the servers already keep another model.
            UnavailableError: a server does not start in time.
        """
        if self.chief is not None:
            raise WrongStateError(
                "the parameter servers keep a model that fit trains", action="train one model in a script, in one way"
            )
        self.chief = Chief(
            self.cluster,
            served,
            max_lead=self.options.max_lead,
            num_backups=self.options.num_backups,
            stage=self.stages.number,
            stage_results=self.stages.stage_results,
        )
        self.trains_by_fit = is_for_fit
        atexit.register(self.chief.close)
        finish_at_exit(self._finish_closures, what="what closures had still to do when the script ended")
        return self.chief

    def _finish_closures(self) -> None:
        """At the end of the script, waits for closures that were not joined. Skipped if an error ended the script."""
        is_failed = getattr(sys, "last_value", None) is not None
        if self.chief is not None and not is_failed and not self.chief.dispatcher.is_settled:
            self.chief.dispatcher.join()

    def leave_fit(self) -> None:
        """In the coordinator, ends the training by ``fit``, so that closures can train.

        Raises:
            WrongStateError: rows of tables would be lost, because no process has all of them.
        """
        chief = self.chief
        if chief is None or not self.trains_by_fit:
            return
        if chief.served.tables:
            raise WrongStateError(
                "closures begin with what the script has, and rows of tables that fit has trained are on the servers",
                received=chief.served.tables[0].spec.name,
                action="train by fit or by closures in a script of its own, from a checkpoint",
            )
        self.chief = None
        atexit.unregister(chief.close)
        chief.end_stage(self.stages.end_stage(chief.served.variables))

    def work(self, open_functions: Callable[[], FunctionContext]) -> Message:
        """In a worker, runs closures until the coordinator ends or leaves this stage; see `work_until_the_end`."""
        return work_until_the_end(self.cluster, open_functions, stage=self.stages.number)
