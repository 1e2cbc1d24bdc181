"""What each role does: a server serves, a worker takes steps, the coordinator runs ``fit``'s own loop."""

# JAX and Keras are partly without types: what comes from them is unknown to the checker, in this file alone.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import atexit
import logging
import random
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast, final

import keras
import numpy as np
from keras.src.trainers.data_adapters import array_slicing  # the public interface has `fit` alone
from keras.src.utils import rng_utils
from typing_extensions import override

from lockstep.errors import InvalidInputError, LockstepError, UnavailableError, WrongStateError
from lockstep.parameter_server.checkpointing.backups import ServedBackups
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.compression import Compression
from lockstep.parameter_server.coordination.chief import Chief
from lockstep.parameter_server.coordination.lifetime import Equipment, work_until_the_end
from lockstep.parameter_server.coordination.working import AbstractFunction
from lockstep.parameter_server.embedding.steps import RowStep
from lockstep.parameter_server.evaluating import Evaluator, StoredRows, checkpoint_directory, watch_coordinator
from lockstep.parameter_server.fitting.chief import FUNCTION, EpochCallback, FitRun, Steps
from lockstep.parameter_server.fitting.data import refuse_created, worker_batches
from lockstep.parameter_server.fitting.first_fit import FirstFit
from lockstep.parameter_server.fitting.step import FitStep
from lockstep.parameter_server.fitting.worker import FitFunction
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.links import Message
from lockstep.parameter_server.model_setup import ServedModel, describe_model, part_random_states
from lockstep.parameter_server.placement import Partitioner
from lockstep.parameter_server.protocol import Mode
from lockstep.parameter_server.server.server import ParameterServer
from lockstep.parameter_server.stages import Stages
from lockstep.processes.exits import finish_at_exit
from lockstep.strategies import fitting
from lockstep.strategies.input import GlobalBatches, InputContext
from lockstep.strategies.runs import AbstractRuns, PassedOver
from lockstep.strategies.step_functions import StepFunction

if TYPE_CHECKING:
    from lockstep.parameter_server.scheduling.scheduler import Scheduler

LOGGER: Final = logging.getLogger(__name__)


@final
@dataclass(frozen=True, kw_only=True)
class Options:
    """How the cluster trains.

    Attributes:
        mode: when the servers apply what is pushed.
        max_lead: how many steps a worker may be ahead of the slowest; None for any number.
        num_backups: of a synchronous step, how many workers need not have pushed.
        overlaps: whether a step begins while the push before it is under way.
        partitioner: cuts variables; None for whole ones.
        compression: how pushes are made smaller; None for whole ones.
    """

    mode: Mode
    max_lead: int | None
    num_backups: int
    overlaps: bool
    partitioner: Partitioner | None
    compression: Compression | None = None


def serve(cluster: Cluster) -> None:
    """Is a parameter server, until the coordinator says that the training is over.

    Raises:
        EngineError: the address is taken, or not this machine's.
        UnavailableError: for too long nobody was there.
    """
    listener = cluster.listen()
    server = ParameterServer(listener)
    LOGGER.info("%s serves at %s", cluster.who, listener.address)
    alone_since_s = time.monotonic()
    try:
        while not server.is_done:
            server.step()
            if listener.peers:
                alone_since_s = time.monotonic()
            elif time.monotonic() - alone_since_s > cluster.start_within_s:
                waited = f"for {cluster.start_within_s:.0f} s"
                raise UnavailableError(
                    f"nobody has been connected to {cluster.who} at {listener.address} {waited}",
                    action="start the coordinator and the workers, or look into their logs",
                )
    finally:
        listener.close()
    LOGGER.info("%s has applied %d pushes: the training is over", cluster.who, server.num_applied)
    LOGGER.info("%s was asked: %s", cluster.who, ", ".join(f"{n} {kind}" for kind, n in server.num_requests.items()))


@final
class ServedRuns(AbstractRuns):
    """Runs ``fit`` as this process's role does.

    Args:
        cluster: who is in it, and who this process is.
        options: how it trains.

    Attributes:
        layout: the strategy's; set once.
        scheduler: what the strategy's coordinator schedules by; None while it has none.
    """

    layout: ServedLayout

    def __init__(self, cluster: Cluster, *, options: Options) -> None:
        self.scheduler: Scheduler | None = None
        self._cluster = cluster
        self._options = options
        self._chief: Chief | None = None
        self._first: FirstFit | None = None
        self._run: FitRun | None = None
        self._round = 0
        self._stages = Stages()
        self._stored_rows = StoredRows()

    @override
    def around(self, model: Any, method: str, arguments: dict[str, Any]) -> AbstractContextManager[None]:
        refuse_created(method, arguments)
        if method != "fit":
            return nullcontext()
        num_steps, given = _num_steps(arguments), dict(arguments)
        _split(arguments)
        if self.is_worker:
            self._work(model, arguments)
        if self.is_evaluator:
            self._look_on(model, arguments)
        return self._coordinate(model, arguments, given=given, num_steps=num_steps)

    @override
    def function(self, model: Any, kind: str) -> Callable[[Any, Any], Any] | None:
        if kind == "train":
            if self._run is None:
                raise WrongStateError(
                    "train_on_batch has no steps to hand to workers",
                    action="train by fit, or by a ClusterCoordinator's closures",
                )
            return self._run.train
        own = {id(variable) for variable in model.variables}
        layers = [layer for layer in self.layout.embeddings if id(layer.embeddings) in own]
        if not layers:
            return None
        step = RowStep(model, layers, kind=kind, read_rows=self.read_rows)
        return StepFunction(step.run, num_steps=model.steps_per_execution, concatenates=kind == "predict")

    def read_rows(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns rows of embeddings as they are now: before the training, their first values; or a checkpoint's.

        Args:
            wanted: int64[rows] of ids, rising, by the embeddings' paths.

        Returns:
            float32[rows, columns] for each.
        """
        if self._chief is not None:
            return self._chief.read_rows(wanted)
        layers = {layer.path: layer for layer in self.layout.embeddings}
        return {path: self._stored_rows.read(layers[path], ids) for path, ids in wanted.items()}

    @property
    def cluster(self) -> Cluster:
        """Who is in it."""
        return self._cluster

    @property
    def is_worker(self) -> bool:
        """Whether this process is a worker."""
        return self._cluster.topology.task.role == "worker"

    @property
    def is_evaluator(self) -> bool:
        """Whether this process is an evaluator."""
        return self._cluster.topology.task.role == "evaluator"

    @property
    def compression(self) -> Compression | None:
        """How pushes are made smaller; None for whole ones."""
        return self._options.compression

    @property
    def is_synchronous(self) -> bool:
        """Whether a step is one of all workers together."""
        return self._options.mode is Mode.SYNCHRONOUS

    @property
    def context(self) -> InputContext:
        """This process's place among those that read input."""
        task = self._cluster.topology.task
        return InputContext(
            num_input_pipelines=self._cluster.num_workers,
            input_pipeline_id=task.index if task.role == "worker" else 0,
            num_replicas_in_sync=self._cluster.num_workers * self.layout.num_replicas,
        )

    def describe(
        self, variables: Sequence[Any], *, optimizers: Sequence[Any], is_kept: Callable[[Any], bool] | None = None
    ) -> ServedModel:
        """Decides where variables are kept; see `describe_model`."""
        return describe_model(
            variables,
            optimizers=optimizers,
            embeddings=self.layout.embeddings,
            num_servers=self._cluster.num_servers,
            partitioner=self._options.partitioner,
            mode=self._options.mode,
            is_kept=is_kept,
        )

    def begin_coordination(self, served: ServedModel) -> Chief:
        """Sets the servers up, and waits for workers from here on.

        Raises:
            WrongStateError: the servers keep another model already, or this process is an evaluator.
            UnavailableError: a server is not there in time.
        """
        if self.is_evaluator:
            raise WrongStateError(
                "an evaluator looks on at fit, and this script has a loop of its own",
                action="start no evaluator for it, or train by fit",
            )
        if self._chief is not None:
            raise WrongStateError(
                "the parameter servers keep a model that fit trains", action="train one model in a script, in one way"
            )
        self._chief = Chief(
            self._cluster,
            served,
            max_lead=self._options.max_lead,
            num_backups=self._options.num_backups,
            stage=self._stages.number,
            left=self._stages.left,
        )
        atexit.register(self._chief.close)
        finish_at_exit(self._finish_closures, what="what closures had still to do when the script ended")
        return self._chief

    def _finish_closures(self) -> None:
        """Waits for closures that nobody has joined, where the script has come to its end; an error has said so."""
        is_failed = getattr(sys, "last_value", None) is not None
        if self._chief is not None and not is_failed and not self._chief.dispatcher.is_settled:
            self._chief.dispatcher.join()

    def leave_fit(self) -> None:
        """In the coordinator, ends what ``fit`` has trained by the cluster, so that closures can train.

        Raises:
            WrongStateError: rows of tables would be lost, which no process has whole.
        """
        chief = self._chief
        if chief is None or self._first is None:
            return
        if chief.served.tables:
            raise WrongStateError(
                "closures begin with what the script has, and rows of tables that fit has trained are on the servers",
                received=chief.served.tables[0].spec.name,
                action="train by fit or by closures in a script of its own, from a checkpoint",
            )
        self._chief = self._first = None
        atexit.unregister(chief.close)
        chief.leave(self._stages.leave(chief.served.variables))

    def work(self, equip: Callable[[], Equipment]) -> Message:
        """Runs closures until the coordinator has ended, or has left this stage; see `work_until_the_end`."""
        return work_until_the_end(self._cluster, equip, stage=self._stages.number)

    @contextmanager
    def _coordinate(
        self, model: Any, arguments: dict[str, Any], *, given: Mapping[str, Any], num_steps: int
    ) -> Generator[None]:
        if self._chief is not None:
            self._check_known(model, given)
        data = {name: arguments.pop(name, None) for name in ("x", "y", "sample_weight", "class_weight", "batch_size")}
        if self._chief is None:
            batches = worker_batches({**arguments, **data}, context=self.context)
            model._symbolic_build(data_batch=batches.example())
            self._first = FirstFit(model, given)
        chief = self._chief or self.begin_coordination(self.describe(model.variables, optimizers=[model.optimizer]))
        run = FitRun(
            chief,
            model,
            num_steps=num_steps,
            seed=_seed(),
            is_synchronous=self.is_synchronous,
            max_lead=self._options.max_lead,
            num_workers=self._cluster.num_workers,
            first_round=self._round,
        )
        self._run = run
        fit = fitting.current_run()
        if fit is not None:
            fit.open_backups = partial(ServedBackups, chief=chief, step=self._round, waits=False)
        arguments["x"] = Steps(num_steps)
        arguments["shuffle"] = False
        arguments["callbacks"] = _with_callback(arguments.get("callbacks"), EpochCallback(run.begin_epoch, end=run.end))
        try:
            yield
            self._stages.note(model.history)
        except UnavailableError:
            raise
        except Exception:
            with suppress(LockstepError):  # of which the first one is to be told
                run.break_off()
            raise
        finally:
            run.drain(is_last=True)
            self._round = run.round
            self._run = None

    def _check_known(self, model: Any, arguments: Mapping[str, Any]) -> None:
        """Checks that a later ``fit`` is one that the workers can run: they know of the first one alone."""
        if self._first is None:
            raise WrongStateError(
                "the parameter servers keep what closures of a ClusterCoordinator train",
                action="have fit come before closures in a script",
            )
        self._first.check(model, arguments)

    def _look_on(self, model: Any, arguments: Mapping[str, Any]) -> NoReturn:
        directory = checkpoint_directory(arguments, self._cluster.topology)
        evaluator = Evaluator(model, arguments, directory=directory, rows=self._stored_rows)
        model._symbolic_build(data_batch=worker_batches(arguments, context=self.context).example())
        num_evaluated = evaluator.run(watch_coordinator(self._cluster))
        LOGGER.info("%s has evaluated %d checkpoints: the training is over", self._cluster.who, num_evaluated)
        raise SystemExit(0)

    def _work(self, model: Any, arguments: Mapping[str, Any]) -> None:
        if self._stages.number:
            raise PassedOver(self._stages.next_history(model))
        batches = worker_batches(arguments, context=self.context)
        model._symbolic_build(data_batch=batches.example())
        served = self.describe(model.variables, optimizers=[model.optimizer])
        part_random_states(served.local, worker=self._cluster.topology.task.index)
        step = FitStep(model, served, layout=self.layout, compression=self._options.compression)

        @contextmanager
        def equip() -> Generator[tuple[Mapping[str, AbstractFunction], Callable[[list[Any]], Any]]]:
            function = FitFunction(
                self._cluster,
                setup=served.setup,
                step=step,
                batches=batches,
                overlaps=self._options.overlaps,
                holds=self._options.mode is Mode.ASYNCHRONOUS and self._options.max_lead != 0,
            )
            try:
                yield {FUNCTION: function}, tuple
            finally:
                function.close()

        self._stages.enter(self.work(equip), served.variables)
        raise PassedOver(self._stages.next_history(model))


def _num_steps(arguments: Mapping[str, Any]) -> int:
    found = arguments.get("steps_per_epoch")
    if isinstance(found, int | np.integer) and not isinstance(found, bool) and found > 0:
        return int(found)
    data = arguments.get("x")
    known = f"{data.num_batches} for a whole pass over this data" if isinstance(data, GlobalBatches) else "1 or more"
    raise InvalidInputError(
        "fit under ParameterServerStrategy needs steps_per_epoch: how many steps all workers together take in an epoch",
        received=found,
        allowed=known,
    )


def _split(arguments: dict[str, Any]) -> None:
    """Takes validation data off, as Keras does: in every process the same."""
    share = arguments.pop("validation_split", 0.0)
    if share and arguments.get("validation_data") is None:
        arrays = tuple(arguments.get(name) for name in ("x", "y", "sample_weight"))
        parted = array_slicing.train_validation_split(arrays, validation_split=share)
        (x, y, weights), arguments["validation_data"] = cast("Any", parted)
        arguments.update(x=x, y=y, sample_weight=weights)


def _with_callback(given: Any, callback: Any) -> Any:
    if isinstance(given, keras.callbacks.CallbackList):
        cast("Any", given).append(callback)
        return given
    return [*(cast("list[Any]", keras.tree.flatten(given)) if given else []), callback]


def _seed() -> int:
    own = rng_utils.get_random_seed()
    return random.SystemRandom().randrange(2**31) if own is None else int(own)
