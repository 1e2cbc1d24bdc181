"""A model with a table, as a coordinator has it and as strategies without servers do, and pushes for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from lockstep.checkpoints import Position
from lockstep.parameter_server.flattening import flatten
from lockstep.parameter_server.optimizers import describe_optimizer, needs_whole
from lockstep.parameter_server.partitioners import FixedShardsPartitioner
from lockstep.parameter_server.placement import VariableSpec, place
from lockstep.parameter_server.protocol import Group, Part, Push, Setup, TableSpec
from lockstep.parameter_server.row_optimizers import LazyAdam, RowOptimizer
from lockstep.parameter_server.servers import Servers
from lockstep.strategies.table_rows import RowValues

TABLE = "model/users"
NUM_ROWS = 40
NUM_COLUMNS = 4


@keras.saving.register_keras_serializable("tests")
class Table(keras.layers.Layer):
    """Has a variable of rows, or of none where servers have them; what it computes does not matter here."""

    def __init__(self, num_rows: int, **options: Any) -> None:
        super().__init__(**options)
        self._num_rows = num_rows

    def build(self, input_shape: Any) -> None:
        self.embeddings = self.add_weight(
            shape=(self._num_rows, NUM_COLUMNS), initializer="random_uniform", name="embeddings"
        )

    def call(self, inputs: Any) -> Any:
        return keras.ops.add(inputs, keras.ops.sum(self.embeddings[:3]))


def make_model(num_rows: int, optimizer: Any) -> Any:
    model = keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(NUM_COLUMNS, name="first"),
            Table(num_rows, name="users"),
            keras.layers.BatchNormalization(name="norm"),
            keras.layers.Dropout(0.5, name="drop"),
            keras.layers.Dense(1, name="last"),
        ],
        name="model",
    )
    model.compile(optimizer, "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def make_setup(
    model: Any, *, num_servers: int, rows: RowOptimizer | None = None, values: RowValues | None = None
) -> Setup:
    """What servers keep of a model: what its optimizer trains, moving statistics, and the table."""
    trained = [v for v in model.trainable_variables if 0 not in v.shape]
    others = [v for v in model.non_trainable_variables if v.dtype == "float32"]
    specs = [
        VariableSpec(path=v.path, shape=tuple(v.shape), dtype=v.dtype, is_whole=needs_whole(model.optimizer, v))
        for v in [*trained, *others]
    ]
    placement = place(specs, num_servers=num_servers, partitioner=FixedShardsPartitioner(2))
    groups = (
        Group(variables=tuple(range(len(trained))), optimizer=describe_optimizer(model.optimizer, trained)),
        Group(variables=tuple(range(len(trained), len(specs)))),
    )
    table = TableSpec(
        name=TABLE,
        num_rows=NUM_ROWS,
        num_columns=NUM_COLUMNS,
        values=values or RowValues(seed=5),
        optimizer=rows or LazyAdam(),
    )
    return Setup(placement=placement, groups=groups, tables=(table,))


def push(
    servers: Servers,
    setup: Setup,
    closure: int,
    *,
    make: Callable[[tuple[int, ...]], Any] | None = None,
    num_ids: int = 10,
) -> None:
    """Pushes a closure's gradients for all dense variables, and for some rows.

    Args:
        servers: all of them.
        setup: what they keep.
        closure: its number; what it pushes depends on nothing else.
        make: gives a gradient of a shape; by default random numbers.
        num_ids: for how many rows.
    """
    random = np.random.default_rng(closure)
    make = make or (lambda shape: random.standard_normal(shape).astype(np.float32))
    gradients: list[dict[str, Any]] = [{} for _ in range(servers.num_servers)]
    parts: list[tuple[Part, ...]] = [() for _ in gradients]
    for number, group in enumerate(setup.groups):
        shapes = [setup.placement.variables[variable].shape for variable in group.variables]
        buffers, _ = flatten(setup.placement, group.variables, [make(shape) for shape in shapes])
        for server, own in enumerate(buffers):
            if own:
                gradients[server] |= {f"gradient.{number}:{dtype}": np.asarray(array) for dtype, array in own.items()}
                parts[server] = (*parts[server], Part(group=number))
    ids = np.sort(random.choice(NUM_ROWS, num_ids, replace=False)).astype(np.int64)
    servers.begin_push(
        Push(closure=closure),
        gradients=gradients,
        parts=parts,
        versions=[0] * servers.num_servers,
        rows={TABLE: (ids, make((num_ids, NUM_COLUMNS)))},
    )
    servers.end_push()


def position(step: int) -> Position:
    return Position(epoch=0, batch=0, step=step)
