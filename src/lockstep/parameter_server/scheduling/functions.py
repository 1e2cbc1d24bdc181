"""Runs closures of the user's own functions in a worker: it sets the values, calls the function, and pushes once.

Before a function runs, the script's variables are set to the servers' values. The updates of optimizers are recorded.
The changes of other variables are their values after the function minus those before it. Everything is sent to the
servers in one push, whose answer brings the values for the next closure.
"""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import keras
import numpy as np
from typing_extensions import override

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.cluster import Cluster
from lockstep.parameter_server.compression import Compression
from lockstep.parameter_server.coordination.working import AbstractFunction, Call, Ended
from lockstep.parameter_server.embedding.calls import RowGradient
from lockstep.parameter_server.exchanging.compressing import ErrorFeedback, Residuals
from lockstep.parameter_server.exchanging.exchange import Exchange, Gradients
from lockstep.parameter_server.exchanging.push_arrays import build_push_arrays
from lockstep.parameter_server.flattening import unflatten
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.model_setup import ServedModel, trained_variables
from lockstep.parameter_server.protocol import Part, Push
from lockstep.parameter_server.scheduling.names import find_function
from lockstep.parameter_server.scheduling.per_worker import TakenBatch, WorkerIterator
from lockstep.parameter_server.servers import Pulled
from lockstep.strategies.loops.lifting import Lifted, functions_by_name
from lockstep.strategies.loops.replica import PerReplica
from lockstep.strategies.updates import Update, deferred_updates
from lockstep.upstream.keras_variables import set_stored_value, stored_value


@final
@dataclass(frozen=True, kw_only=True)
class _Form:
    """The structure of a closure's results for the servers, without values. One compiled program handles one structure.

    Attributes:
        optimizers: the optimizers that were applied.
        variables: for each of them, the ids of the variables that it was given gradients for.
        has_gradient: for each of these variables, whether there is a gradient.
        changed: the other variables that the closure changed, by their indices among the served ones.
    """

    optimizers: tuple[Any, ...]
    variables: tuple[tuple[int, ...], ...]
    has_gradient: tuple[tuple[bool, ...], ...]
    changed: tuple[int, ...]


@final
class ClosureRunner:
    """Runs functions of the script with the servers' values.

    Belongs to one thread. Closures run one after the other, and each has ended before the next one begins.

    Args:
        cluster: the cluster with the servers.
        served: what the servers keep, with the variables of this process.
        layout: the layout of these variables.
        scope: a function that returns the strategy's scope.
        compression: how gradients are compressed; None to send all of them.

    Attributes:
        exchange: the exchange with the servers.
    """

    def __init__(
        self,
        cluster: Cluster,
        served: ServedModel,
        *,
        layout: ServedLayout,
        scope: Callable[[], AbstractContextManager[Any]],
        compression: Compression | None = None,
    ) -> None:
        self._served = served
        self._layout = layout
        self._scope = scope
        self._feedback = ErrorFeedback(served.setup, compression, put_on_devices=layout.to_compute_devices)
        # With copies: a closure may pull rows repeatedly, and its changes are computed from the values that it began
        # with.
        self.exchange = Exchange(cluster, served.setup, feedback=self._feedback, copies=True)
        layout.read_rows = self._read_rows
        placement = served.setup.placement
        # Copies: a variable's buffer may be donated, and a closure's variables outlive the received buffers.
        self._unflatten: Any = jax.jit(
            lambda buffers: [jnp.copy(value) for value in unflatten(placement, buffers)],
            out_shardings=layout.replicated,
        )
        several = layout.replicated if len(layout.devices) > 1 else None
        self._build_push_arrays: Any = jax.jit(self._trace, static_argnums=0, out_shardings=several)
        self._noted: dict[_Form, list[Sequence[Any]]] = {}
        self._parts: dict[_Form, list[tuple[Part, ...]]] = {}
        self._trained_by = {
            id(variable): optimizer for optimizer in served.optimizers for variable in trained_variables(optimizer)
        }

    def run(self, function: Callable[..., Any], call: Call) -> dict[str, Any]:
        """Runs a closure to its end.

        Args:
            function: the function.
            call: the call. Its arguments are the required minimum version of the values, and the function's own
                arguments.

        Returns:
            The function's result ("value"), the number of pushes that each server had applied then ("versions"), and
            the number that were applied between the pull and the push ("staleness"); None if there was no push.

        Raises:
            GiveBackError: a server is unavailable.
            InvalidInputError: the function changed a variable in a way that is not possible here.
            Exception: the user's own error.
        """
        needed, args, kwargs = call.args
        pulled = self._renew(needed)
        before = self._assign(pulled)
        known = {id(variable) for variable in self._layout.variables}
        if isinstance(function, Lifted):
            args, kwargs = _take_batches((args, kwargs))
        with self._scope(), deferred_updates() as noted:
            returned = function(*args, **kwargs)
        form = self._form(noted, before, known=known)
        staleness = None
        if form.optimizers or form.changed:
            push = Push(closure=call.number, watermark=call.watermark)
            pulled = self.exchange.push(push, self._gradients(form, noted, pulled), of=pulled)
            staleness = pulled.staleness
        versions = [state.version for state in pulled.states]
        value = keras.tree.map_structure(_local_value, returned)
        return {"value": value, "versions": versions, "staleness": staleness}

    def close(self) -> None:
        """Closes the links to the servers. Idempotent."""
        self.exchange.close()

    def _renew(self, needed: Mapping[str, Any]) -> Pulled:
        """Returns values with the effects of all closures that had ended at scheduling.

        Pulls only if the last are older.
        """
        self.exchange.forget_outdated(num_writes=int(needed["writes"]), num_restores=int(needed["restores"]))
        pulled = self.exchange.pulled
        if pulled is None or any(
            state.version < least for state, least in zip(pulled.states, needed["versions"], strict=True)
        ):
            return self.exchange.pull()
        return pulled

    def _assign(self, pulled: Pulled) -> list[Any]:
        values = self._unflatten([dict(own) for own in pulled.dense])
        for variable, value in zip(self._served.variables, values, strict=True):
            set_stored_value(variable, value)
        return values

    def _form(self, noted: Sequence[Update], before: Sequence[Any], *, known: set[int]) -> _Form:
        new = [one.path for one in self._layout.variables if id(one) not in known]
        has_known_optimizers = all(any(one.optimizer is own for own in self._served.optimizers) for one in noted)
        if new and has_known_optimizers:  # the error about an unknown optimizer is clearer
            raise InvalidInputError(
                "a closure made a variable, which the parameter servers do not know",
                received=new[0],
                action="make models, optimizers (and build them) and metrics before the first closure is scheduled",
            )
        changed: list[int] = []
        for index, (variable, value) in enumerate(zip(self._served.variables, before, strict=True)):
            if stored_value(variable) is not value:
                changed.append(index)
                if id(variable) in self._trained_by:
                    raise InvalidInputError(
                        f"a closure changes variable {variable.path} itself, which an optimizer on the parameter "
                        "servers trains",
                        allowed="changes by the optimizer's apply alone; in the coordinator, any",
                    )
        for update in noted:
            for gradient, variable in zip(update.gradients, update.variables, strict=True):
                _check_gradient(gradient, variable)
        return _Form(
            optimizers=tuple(update.optimizer for update in noted),
            variables=tuple(tuple(map(id, update.variables)) for update in noted),
            has_gradient=tuple(tuple(one is not None for one in update.gradients) for update in noted),
            changed=tuple(changed),
        )

    def _gradients(self, form: _Form, noted: Sequence[Update], pulled: Pulled) -> Gradients:
        """Returns the results of a closure in the form of a push. Waits until they have been computed."""
        # The variables are kept, so that their ids stay valid.
        self._noted.setdefault(form, [update.variables for update in noted])
        changed = [stored_value(self._served.variables[index]) for index in form.changed]
        gradients = [list(map(_array_of, update.gradients)) for update in noted]
        before = self._feedback.residuals
        arrays, rows, after = self._build_push_arrays(
            form, gradients, [dict(own) for own in pulled.dense], changed, before
        )
        arrays = jax.block_until_ready(arrays)
        self._feedback.residuals = after  # only now is it known that everything was computed
        ids = self._ids(noted)
        rows = {table: rows[table] for table in ids}
        return Gradients(arrays=arrays, parts=self._parts[form], rows=rows, ids=ids, residuals=(before, after))

    def _ids(self, noted: Sequence[Update]) -> dict[str, np.ndarray[Any, Any]]:
        """Returns the ids of the rows that have gradients, by table name."""
        gradients = {
            id(variable): gradient
            for update in noted
            for gradient, variable in zip(update.gradients, update.variables, strict=True)
        }
        found = {table.spec.name: gradients.get(id(table.variable)) for table in self._served.tables}
        return {name: gradient.ids for name, gradient in found.items() if isinstance(gradient, RowGradient)}

    def _read_rows(self, wanted: Mapping[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        return {table: np.array(own) for table, own in self.exchange.pull_rows(wanted).items()}

    def _trace(self, form: _Form, gradients: Any, buffers: Any, changed: Any, residuals: Residuals) -> Any:
        served = self._served
        updates = [
            Update(optimizer=optimizer, gradients=own, variables=variables)
            for optimizer, own, variables in zip(form.optimizers, gradients, self._noted[form], strict=True)
        ]
        before = dict(zip(map(id, served.variables), unflatten(served.setup.placement, buffers), strict=True))
        after = {id(served.variables[index]): value for index, value in zip(form.changed, changed, strict=True)}
        arrays, parts, rows = build_push_arrays(served, updates, before=before, after=after)
        arrays, self._parts[form], residuals = self._feedback.compress(arrays, parts, residuals)
        return arrays, rows, residuals


@final
class ScheduledFunction(AbstractFunction):
    """A function of the script, as a function that closures call.

    Args:
        function: the function.
        runner: the runner of this worker.
    """

    def __init__(self, function: Callable[..., Any], *, runner: ClosureRunner) -> None:
        self._function = function
        self._runner = runner

    @override
    def begin(self, call: Call) -> Sequence[Ended]:
        return [Ended(number=call.number, value=self._runner.run(self._function, call))]

    @override
    def finish(self) -> Sequence[Ended]:
        return []

    @property
    @override
    def awaits_servers(self) -> bool:
        return self._runner.exchange.awaits_servers

    @override
    def under_way(self) -> Sequence[int]:
        return []

    @override
    def forget(self) -> Sequence[Ended]:
        return []

    @override
    def recover(self, meanwhile: Callable[[], None]) -> None:
        self._runner.exchange.recover(meanwhile)


@final
class ScheduledFunctions(Mapping[str, AbstractFunction]):
    """The functions of this process's script, by name.

    Args:
        runner: the runner of this worker.
    """

    def __init__(self, runner: ClosureRunner) -> None:
        self._runner = runner
        self._found: dict[str, ScheduledFunction] = {}

    def __getitem__(self, name: str) -> AbstractFunction:
        if name not in self._found:
            function = find_function(name)
            if function is None:
                raise KeyError(name)
            self._found[name] = ScheduledFunction(function, runner=self._runner)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**self._found, **functions_by_name()})

    def __len__(self) -> int:
        return len(list(iter(self)))


def _take_batches(arguments: Any) -> Any:
    """Takes a batch from each iterator among a compiled function's arguments."""
    iterators = {id(leaf): leaf for leaf in keras.tree.flatten(arguments) if isinstance(leaf, WorkerIterator)}
    # Not in the function for `map_structure`, which would take the error at the end of the data for its own end.
    taken = {own: TakenBatch(next(iterator)) for own, iterator in iterators.items()}
    return keras.tree.map_structure(lambda leaf: taken.get(id(leaf), leaf), arguments)


def _local_value(leaf: Any) -> Any:
    """Returns the value of the only replica of this worker, or a tuple with the values of all its replicas."""
    if not isinstance(leaf, PerReplica):
        return leaf
    return leaf.values[0] if leaf.num_replicas == 1 else leaf.values


def _array_of(gradient: Any) -> Any:
    return gradient.values if isinstance(gradient, RowGradient) else gradient


def _check_gradient(gradient: Any, variable: Any) -> None:
    if gradient is None or isinstance(gradient, RowGradient):
        return
    shape, dtype = tuple(np.shape(gradient)), jnp.result_type(gradient)
    if shape != tuple(variable.shape) or not jnp.issubdtype(dtype, jnp.floating):
        raise InvalidInputError(
            f"an optimizer was given a gradient of {variable.path} that is not like the variable",
            received=f"{dtype} of shape {shape}",
            allowed=f"{variable.dtype} (or another float) of shape {tuple(variable.shape)}",
        )
