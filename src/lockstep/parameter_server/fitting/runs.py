"""``fit`` in each role: a worker runs steps, an evaluator evaluates, and the coordinator runs Keras's own loop."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Final, NoReturn, cast, final

import keras
import numpy as np
from typing_extensions import override

from lockstep.errors import InvalidInputError, LockstepError, UnavailableError, WrongStateError
from lockstep.parameter_server.checkpointing.backups import ServedBackups
from lockstep.parameter_server.coordination.working import AbstractFunction
from lockstep.parameter_server.embedding.steps import RowStep
from lockstep.parameter_server.evaluating import Evaluator, StoredRows, checkpoint_directory, watch_coordinator
from lockstep.parameter_server.fitting.chief import FUNCTION, CoordinatedFit, EpochCallback, Steps
from lockstep.parameter_server.fitting.data import refuse_created, worker_batches
from lockstep.parameter_server.fitting.first_fit import FirstFit
from lockstep.parameter_server.fitting.step import FitStep
from lockstep.parameter_server.fitting.worker import FitFunction
from lockstep.parameter_server.membership import Member
from lockstep.parameter_server.model_setup import part_random_states
from lockstep.strategies import fitting
from lockstep.strategies.input import GlobalBatches
from lockstep.strategies.runs import AbstractRuns, SkipCall
from lockstep.strategies.step_functions import StepFunction
from lockstep.upstream.keras_data import train_validation_split
from lockstep.upstream.keras_trainer import build_from_batch
from lockstep.upstream.keras_variables import get_random_seed

LOGGER: Final = logging.getLogger(__name__)


@final
class ServedRuns(AbstractRuns):
    """Runs ``fit`` according to the role of this process.

    Args:
        member: this process as a member of the cluster.
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._first: FirstFit | None = None
        self._fit: CoordinatedFit | None = None
        self._round = 0
        self._stored_rows = StoredRows()

    @override
    def wrap_call(self, model: Any, method: str, arguments: dict[str, Any]) -> AbstractContextManager[None]:
        refuse_created(method, arguments)
        if method != "fit":
            return nullcontext()
        num_steps, given = _num_steps(arguments), dict(arguments)
        _split(arguments)
        if self._member.role == "worker":
            self._work(model, arguments)
        if self._member.role == "evaluator":
            self._evaluate(model, arguments)
        return self._coordinate(model, arguments, given=given, num_steps=num_steps)

    @override
    def step_function(self, model: Any, kind: str) -> Callable[[Any, Any], Any] | None:
        if kind == "train":
            if self._fit is None:
                raise WrongStateError(
                    "train_on_batch has no steps to hand to workers",
                    action="train by fit, or by a ClusterCoordinator's closures",
                )
            return self._fit.train
        own = {id(variable) for variable in model.variables}
        layers = [layer for layer in self._member.layout.embeddings if id(layer.embeddings) in own]
        if not layers:
            return None
        step = RowStep(model, layers, kind=kind, read_rows=self.read_rows)
        return StepFunction(step.run, num_steps=model.steps_per_execution, concatenates=kind == "predict")

    def read_rows(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the current rows of embeddings. Before the training, these are their first values, or a checkpoint's.

        Args:
            wanted: the ids of the rows by embedding path: int64[rows], ascending.

        Returns:
            float32[rows, columns] for each embedding.
        """
        if self._member.chief is not None:
            return self._member.chief.read_rows(wanted)
        layers = {layer.path: layer for layer in self._member.layout.embeddings}
        return {path: self._stored_rows.read(layers[path], ids) for path, ids in wanted.items()}

    @contextmanager
    def _coordinate(
        self, model: Any, arguments: dict[str, Any], *, given: Mapping[str, Any], num_steps: int
    ) -> Generator[None]:
        member = self._member
        if member.chief is not None:
            self._check_known(model, given)
        data = {name: arguments.pop(name, None) for name in ("x", "y", "sample_weight", "class_weight", "batch_size")}
        if member.chief is None:
            batches = worker_batches({**arguments, **data}, context=self._member.context)
            build_from_batch(model, batches.example())
            self._first = FirstFit(model, given)
        chief = member.chief or member.begin_coordination(
            member.describe(model.variables, optimizers=[model.optimizer]), is_for_fit=True
        )
        coordinated = CoordinatedFit(
            chief,
            model,
            num_steps=num_steps,
            seed=_seed(),
            is_synchronous=member.options.is_synchronous,
            max_lead=member.options.max_lead,
            num_workers=member.cluster.num_workers,
            first_round=self._round,
        )
        self._fit = coordinated
        fit = fitting.current_call()
        if fit is not None:
            fit.open_backups = partial(
                ServedBackups, chief=chief, step=self._round, waits=False, send_changes=coordinated.send_changes
            )
        arguments["x"] = Steps(num_steps)
        arguments["shuffle"] = False
        arguments["callbacks"] = _with_callback(
            arguments.get("callbacks"), EpochCallback(coordinated.begin_epoch, end=coordinated.end)
        )
        try:
            yield
            member.stages.note(model.history)
        except UnavailableError:
            raise
        except Exception:
            with suppress(LockstepError):  # the first error is the one to raise
                coordinated.stop_after_error()
            raise
        finally:
            coordinated.drain(is_last=True)
            self._round = coordinated.round
            self._fit = None

    def _check_known(self, model: Any, arguments: Mapping[str, Any]) -> None:
        """Checks that the workers can run a later ``fit``: they only know the first one."""
        if self._first is None or not self._member.trains_by_fit:
            raise WrongStateError(
                "the parameter servers keep what closures of a ClusterCoordinator train",
                action="have fit come before closures in a script",
            )
        self._first.check(model, arguments)

    def _evaluate(self, model: Any, arguments: Mapping[str, Any]) -> NoReturn:
        directory = checkpoint_directory(arguments, self._member.cluster.topology)
        evaluator = Evaluator(model, arguments, directory=directory, rows=self._stored_rows)
        build_from_batch(model, worker_batches(arguments, context=self._member.context).example())
        num_evaluated = evaluator.run(watch_coordinator(self._member.cluster))
        LOGGER.info(
            "%s has evaluated %d checkpoints: the training is over", self._member.cluster.process_name, num_evaluated
        )
        raise SystemExit(0)

    def _work(self, model: Any, arguments: Mapping[str, Any]) -> None:
        member = self._member
        if member.stages.number:
            raise SkipCall(member.stages.next_history(model))
        batches = worker_batches(arguments, context=self._member.context)
        build_from_batch(model, batches.example())
        served = member.describe(model.variables, optimizers=[model.optimizer])
        part_random_states(served.local, worker=member.index)
        step = FitStep(model, served, layout=member.layout, compression=member.options.compression)

        @contextmanager
        def open_functions() -> Generator[tuple[Mapping[str, AbstractFunction], Callable[[list[Any]], Any]]]:
            function = FitFunction(
                member.cluster,
                setup=served.setup,
                step=step,
                batches=batches,
                overlaps=member.options.overlaps,
                holds=not member.options.is_synchronous and member.options.max_lead != 0,
            )
            try:
                yield {FUNCTION: function}, tuple
            finally:
                function.close()

        member.stages.enter(member.work(open_functions), served.variables)
        raise SkipCall(member.stages.next_history(model))


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
    """Splits off validation data as Keras does. The result is the same in every process."""
    fraction = arguments.pop("validation_split", 0.0)
    if fraction and arguments.get("validation_data") is None:
        arrays = tuple(arguments.get(name) for name in ("x", "y", "sample_weight"))
        parted = train_validation_split(arrays, validation_split=fraction)
        (x, y, weights), arguments["validation_data"] = cast("Any", parted)
        arguments.update(x=x, y=y, sample_weight=weights)


def _with_callback(given: Any, callback: Any) -> Any:
    if isinstance(given, keras.callbacks.CallbackList):
        cast("Any", given).append(callback)
        return given
    return [*(cast("list[Any]", keras.tree.flatten(given)) if given else []), callback]


def _seed() -> int:
    own = get_random_seed()
    return random.SystemRandom().randrange(2**31) if own is None else int(own)
