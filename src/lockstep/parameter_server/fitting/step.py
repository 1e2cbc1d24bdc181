"""A training step in a worker: one program that computes gradient buffers from the servers' value buffers."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportPrivateUsage=false, reportUnknownParameterType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import jax
import jax.numpy as jnp
import numpy as np

from lockstep.errors import InvalidInputError
from lockstep.parameter_server.compression import Compression
from lockstep.parameter_server.embedding.lookups import (
    Lookups,
    Wanted,
    check_ids,
    pad_to_power_of_two,
    placeholder_array,
)
from lockstep.parameter_server.exchanging.compressing import ErrorFeedback, Residuals
from lockstep.parameter_server.exchanging.exchange import Gradients
from lockstep.parameter_server.exchanging.push_arrays import build_push_arrays
from lockstep.parameter_server.flattening import unflatten
from lockstep.parameter_server.model_setup import ServedModel
from lockstep.parameter_server.protocol import Part
from lockstep.strategies import programs
from lockstep.strategies.mesh import AbstractLayout
from lockstep.strategies.updates import deferred_updates

Buffers = Sequence[dict[str, Any]]
"""For each server, its dense values by dtype."""


@final
@dataclass(frozen=True, kw_only=True)
class Computed:
    """The results of a step. They may still be being computed.

    Attributes:
        gradients: the gradients to push.
        metrics: the changes of the metrics' variables, one after the other, by dtype.
    """

    gradients: Gradients
    metrics: dict[str, Any]


@final
class FitStep:
    """Computes the ``train_step`` of a model.

    Args:
        model: the model, built and compiled.
        served: the model's variables, grouped by where they are kept.
        layout: the devices that compute.
        compression: how gradients are compressed; None to send all of them.

    Attributes:
        feedback: what pushes have left out of their gradients.
    """

    def __init__(
        self, model: Any, served: ServedModel, *, layout: AbstractLayout, compression: Compression | None = None
    ) -> None:
        self._model = model
        self._served = served
        self._layout = layout
        self._is_compiled = bool(model.jit_compile) and not model.run_eagerly
        self._compute: Any = jax.jit(self._trace) if self._is_compiled else self._trace
        self._local = [variable.value for variable in served.local]
        self.feedback = ErrorFeedback(served.setup, compression, put_on_devices=layout.to_compute_devices)
        self._parts: list[tuple[Part, ...]] = []
        self._lookups = Lookups({table.spec.name: table.variable for table in served.tables}, self._find_ids)
        self._is_announced = False
        model.reset_metrics()
        self._metrics = [np.asarray(variable.value) for variable in model.metrics_variables]

    def wanted(self, batch: Any) -> Wanted:
        """Returns the rows of tables that a step uses.

        Args:
            batch: the inputs, targets and weights.

        Raises:
            InvalidInputError: an id is not in its table, or is not known before the step.
        """
        if not self._served.tables:
            return Wanted(ids={}, indices=[])
        wanted = self._lookups.wanted(self._local, batch)
        for table in self._served.tables:
            check_ids(table.spec.name, wanted.ids[table.spec.name], num_rows=table.spec.num_rows)
        return wanted

    def run(self, buffers: Buffers, batch: Any, *, wanted: Wanted, rows: Mapping[str, Any]) -> Computed:
        """Begins a step. Does not wait for its results if the model is compiled.

        Args:
            buffers: the servers' values. They may change once the step has been computed.
            batch: the inputs, targets and weights.
            wanted: the result of `wanted` for the batch.
            rows: the rows of the wanted ids, by table.
        """
        if len(self._layout.devices) > 1:
            buffers, batch = self._layout.to_compute_devices(buffers), self._layout.place(batch)
        tables = {name: pad_to_power_of_two(own) for name, own in rows.items()}
        before = self.feedback.residuals
        arguments = (list(map(dict, buffers)), self._local, batch, tables, wanted.indices, before)
        if self._is_compiled and not self._is_announced and programs.is_watched():
            self._is_announced = True
            labels = (
                programs.PARAMETERS,
                programs.OTHER_STATE,
                programs.BATCH,
                programs.PARAMETERS,
                programs.BATCH,
                programs.OTHER_STATE,
            )
            name = f"fit of {self._model.name}"
            programs.announce(
                programs.Program(name=name, step=self._compute, args=arguments, labels=labels, donates=False)
            )
        gradients, changes, metrics, self._local, after = self._compute(*arguments)
        self.feedback.residuals = after
        pushed = Gradients(arrays=gradients, parts=self._parts, rows=changes, ids=wanted.ids, residuals=(before, after))
        return Computed(gradients=pushed, metrics=metrics)

    def _trace(
        self,
        buffers: Buffers,
        local: list[Any],
        batch: Any,
        rows: dict[str, Any],
        indices: list[Any],
        residuals: Residuals,
    ) -> Any:
        with self._lookups.finding(indices, rows):
            gradients, *others = self._train(buffers, local, batch, rows)
        gradients, self._parts, residuals = self.feedback.compress(gradients, self._parts, residuals)
        results = (gradients, *others, residuals)
        if self._is_compiled and len(self._layout.devices) > 1:
            results = jax.lax.with_sharding_constraint(results, self._layout.replicated)
        return results

    def _find_ids(self, value: Any, local: list[Any], batch: Any) -> list[int]:
        placement = self._served.setup.placement
        sizes = [placement.buffer_sizes(server) for server in range(placement.num_servers)]
        buffers = [
            {dtype: placeholder_array((size,), dtype, value=value) for dtype, size in own.items()} for own in sizes
        ]
        *_, after = self._train(buffers, local, batch)
        return [index for index, (old, new) in enumerate(zip(local, after, strict=True)) if new is not old]

    def _train(self, buffers: Buffers, local: list[Any], batch: Any, rows: Mapping[str, Any] | None = None) -> Any:
        model, served = self._model, self._served
        values = dict(zip(map(id, served.variables), unflatten(served.setup.placement, buffers), strict=True))
        values.update(zip(map(id, served.local), local, strict=True))
        for table in served.tables:
            own = table.variable
            values[id(own)] = jnp.zeros(own.shape, own.dtype) if rows is None else rows[table.spec.name]
        trainable = [values[id(variable)] for variable in model.trainable_variables]
        non_trainable = [values[id(variable)] for variable in model.non_trainable_variables]
        # The servers keep the optimizer's own state.
        unknown = [jnp.zeros(variable.shape, variable.dtype) for variable in model.optimizer.variables]
        with deferred_updates() as noted:
            _, state = model.train_step(
                (trainable, non_trainable, unknown, [jnp.asarray(v) for v in self._metrics]), batch
            )
        for variable, old, new in zip(model.trainable_variables, trainable, state[0], strict=True):
            if old is not new:
                raise InvalidInputError(
                    f"train_step changes variable {variable.path} itself, which the parameter servers keep",
                    allowed="changes by an optimizer's apply or stateless_apply alone",
                )
        after = dict(zip(map(id, model.non_trainable_variables), state[1], strict=True))
        gradients, parts, changes = build_push_arrays(served, noted, before=values, after=after)
        if rows is not None or not served.tables:
            self._parts = parts
        metrics: dict[str, list[Any]] = {}
        for new, old in zip(state[3], self._metrics, strict=True):
            metrics.setdefault(new.dtype.name, []).append(jnp.ravel(new - old))
        return (
            gradients,
            changes,
            {dtype: jnp.concatenate(parts) for dtype, parts in metrics.items()},
            [after.get(id(variable), values[id(variable)]) for variable in served.local],
        )
