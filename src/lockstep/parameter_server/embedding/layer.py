"""An embedding layer whose table is kept by parameter servers. Under other strategies it is an ordinary embedding."""

# JAX and Keras are only partly typed, so the checks below are off in this file.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportUnknownParameterType=false, reportIncompatibleMethodOverride=false

from __future__ import annotations

import logging
import operator
import zlib
from typing import Any, Final, final

import jax.numpy as jnp
import keras
import numpy as np
from jax.core import Tracer
from typing_extensions import override

from lockstep.errors import InvalidInputError, WrongStateError
from lockstep.parameter_server.embedding.bits import check_bits
from lockstep.parameter_server.embedding.lookups import check_ids, current_lookups
from lockstep.parameter_server.layout import ServedLayout
from lockstep.parameter_server.row_optimizers import AbstractRowOptimizer, RowOptimizer, row_optimizer
from lockstep.strategies.table_rows import RowValues, row_values
from lockstep.upstream.keras_scopes import in_symbolic_scope
from lockstep.upstream.keras_variables import get_random_seed

LOGGER: Final = logging.getLogger(__name__)

MAX_ROWS: Final = 2**31 - 1


@final
@keras.saving.register_keras_serializable(package="lockstep")
class Embedding(keras.layers.Layer):
    """Turns integers into rows of a table.

    Under `lockstep.parameter_server.ParameterServerStrategy`, the parameter servers keep the table: row n is kept by
    the server with the index n modulo the number of servers. A step pulls the rows of the distinct ids in its batch,
    and pushes gradients for these rows alone. A row takes memory on its server only after its id is first met. Its
    first values depend on the id and the seed alone. Under this strategy, `embeddings` has no rows.

    Under every other strategy, the layer is an ordinary embedding with the same first values, trained by the model's
    own optimizer.

    Args:
        input_dim: the number of ids, at most 2**31 - 1. Ids are 0 to input_dim - 1.
        output_dim: the number of values in a row.
        embeddings_initializer: a Keras initializer whose values can be drawn row by row: "uniform", "normal", "zeros",
            "glorot_uniform" and the like.
        optimizer: the optimizer of the rows on the servers: "sgd", "adagrad" (row-wise) or "adam" (lazy), or one with
            options from `lockstep.parameter_server.row_optimizer`. By default, the row optimizer that is nearest to the
            model's optimizer, with its learning rate.
        embeddings_regularizer: a Keras regularizer, applied to the rows that a batch uses.
        mask_zero: whether id 0 marks a missing value, as in ``keras.layers.Embedding``.
        seed: the seed of the first values. The default is computed from Keras's seed and the layer's path.
        **kwargs: ``name`` and the other arguments of every Keras layer.

    Input shape: integers of any shape, or floats with enough bits to represent each id exactly.

    Output shape: the input shape followed by output_dim; float32.

    Raises:
        InvalidInputError: a number is out of range, the initializer cannot draw single rows, or the optimizer is not a
            row optimizer.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        *,
        embeddings_initializer: Any = "uniform",
        optimizer: str | RowOptimizer | None = None,
        embeddings_regularizer: Any = None,
        mask_zero: bool = False,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        dims = [_checked_dim(name, dim) for name, dim in (("input_dim", input_dim), ("output_dim", output_dim))]
        super().__init__(**kwargs)
        self.autocast = False  # a float with fewer bits would be another id
        self.input_dim, self.output_dim = dims
        self.embeddings_initializer = keras.initializers.get(embeddings_initializer)
        self.embeddings_regularizer = keras.regularizers.get(embeddings_regularizer)
        self.mask_zero = mask_zero
        self.supports_masking = mask_zero
        self.row_optimizer = row_optimizer(optimizer) if isinstance(optimizer, str) else optimizer
        if not isinstance(self.row_optimizer, AbstractRowOptimizer | None):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInputError(
                "optimizer of an Embedding",
                received=type(optimizer).__name__,
                allowed='"sgd", "adagrad" or "adam"; one by lockstep.parameter_server.row_optimizer; or None: what is '
                "nearest to the model's",
            )
        self.seed = seed
        self._row_values()  # raises early if the initializer is not supported

    @override
    def build(self, input_shape: Any = None) -> None:
        """Creates the table, or the variable that stands for it. Called by Keras."""
        layout = keras.distribution.distribution()
        is_served = isinstance(layout, ServedLayout)
        values = self._row_values()

        def first_values(shape: Any, dtype: Any = None) -> Any:
            ids = np.arange(shape[0], dtype=np.int64)
            return jnp.asarray(values.of(ids, num_columns=shape[1], dtype=np.dtype(np.float32)))

        self.embeddings = self.add_weight(
            shape=(0 if is_served else self.input_dim, self.output_dim),
            initializer=first_values,
            name="embeddings",
            dtype="float32",
            regularizer=self.embeddings_regularizer,
            autocast=False,
        )
        if is_served:
            layout.note_table(self)
        self.built = True

    def first_values(self) -> RowValues:
        """Returns the source of the first values of rows."""
        return self._row_values()

    @override
    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer. Checks the ids first, because Keras converts its inputs to 32 bits before it calls `call`.

        Raises:
            InvalidInputError: an id does not fit into 32 bits.
        """
        check_bits(inputs)
        return super().__call__(inputs, *args, **kwargs)

    @override
    def call(self, inputs: Any) -> Any:
        """Returns the rows of ids.

        Raises:
            InvalidInputError: the ids are floats with too few bits to represent each id of the table.
            WrongStateError: the servers keep the table, and this code is neither a step of Keras nor a closure, or it
                is outside the strategy's scope.
        """
        inputs = self._whole(inputs)
        if self.embeddings.shape[0] and current_lookups() is None:
            return jnp.take(self.embeddings.value, inputs, axis=0)
        lookups = current_lookups()
        if lookups is not None:
            return lookups.look_up(self.embeddings, inputs)
        if in_symbolic_scope():
            return jnp.zeros((*jnp.shape(inputs), self.output_dim), jnp.float32)
        layout = keras.distribution.distribution()
        if not isinstance(layout, ServedLayout):
            raise WrongStateError(
                f"embedding {self.path} was called outside of its strategy's scope: its rows lie on servers",
                action="call it, or the model, within strategy.scope()",
            )
        is_traced = isinstance(inputs, Tracer) or isinstance(self.embeddings.value, Tracer)
        if is_traced or layout.read_rows is None:
            raise WrongStateError(
                f"embedding {self.path} was called in code that JAX traces, where its rows are not at hand",
                action="call the model within fit, evaluate, predict or a function that lockstep.function compiles, in "
                "the strategy's scope; or on plain arrays",
            )
        different, indices = np.unique(np.asarray(inputs).astype(np.int64), return_inverse=True)
        path = str(self.path)
        check_ids(path, different, num_rows=self.input_dim)
        rows = layout.read_rows({path: different})[path]
        return jnp.asarray(rows[indices.reshape(np.shape(inputs))])

    @override
    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """Returns a mask that is False where the id is 0, if `mask_zero` is set; otherwise None."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns the input shape followed by output_dim."""
        return (*input_shape, self.output_dim)

    @override
    def compute_output_spec(self, inputs: Any) -> Any:
        """Returns the symbolic output for Keras's functional models.

        Raises:
            InvalidInputError: as for `call`.
        """
        self._check_dtype(inputs.dtype)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="float32")

    @override
    def get_config(self) -> dict[str, Any]:
        """Returns the configuration from which `from_config` creates the same layer again."""
        own = self.row_optimizer
        return {
            **super().get_config(),
            "input_dim": self.input_dim,
            "output_dim": self.output_dim,
            "embeddings_initializer": keras.initializers.serialize(self.embeddings_initializer),
            "optimizer": None if own is None else vars(own),
            "embeddings_regularizer": keras.regularizers.serialize(self.embeddings_regularizer),
            "mask_zero": self.mask_zero,
            "seed": self.seed,
        }

    @override
    def save_own_variables(self, store: Any) -> None:
        """Writes the table into a file of weights. Called by Keras. Warns if the servers keep the rows."""
        if not self.embeddings.shape[0]:
            LOGGER.warning(
                "the saved file holds no rows of embedding %s: they lie on the parameter servers; checkpoints have "
                "them, and are read under any strategy: lockstep.training.BackupAndRestore(directory)",
                self.path,
            )
        super().save_own_variables(store)

    @override
    def load_own_variables(self, store: Any) -> None:
        """Reads the table from a file of weights. Called by Keras.

        Raises:
            InvalidInputError: the servers kept the rows when the file was saved, and they are needed here; or the
                reverse.
        """
        num_saved, num_here = len(store["0"]), self.embeddings.shape[0]
        if num_saved != num_here and 0 in (num_saved, num_here):
            raise InvalidInputError(
                f"the saved rows of embedding {self.path}",
                received=f"{num_saved} rows",
                allowed=f"{num_here}: "
                + ("they lay on parameter servers" if num_here else "here they lie on parameter servers"),
                action="move the model by a checkpoint: lockstep.training.BackupAndRestore(directory)",
            )
        if not num_here:
            LOGGER.warning(
                "the file holds no rows of embedding %s: they stay as the parameter servers have them", self.path
            )
        super().load_own_variables(store)

    @classmethod
    @override
    def from_config(cls, config: dict[str, Any]) -> Embedding:
        """Creates a layer from its configuration."""
        own = config.pop("optimizer", None)
        return cls(**config, optimizer=None if own is None else row_optimizer(**own))

    def _whole(self, ids: Any) -> Any:
        """Returns ids as integers, after a check that their dtype represents every id of the table exactly."""
        self._check_dtype(ids.dtype)
        return ids if jnp.issubdtype(ids.dtype, jnp.integer) else ids.astype(jnp.int32)

    def _check_dtype(self, dtype: Any) -> None:
        if not jnp.issubdtype(dtype, jnp.floating):
            return
        most = 2 ** (jnp.finfo(dtype).nmant + 1)
        if self.input_dim > most:
            raise InvalidInputError(
                f"ids of embedding {self.path} come as {dtype}, which rounds those above {most}",
                received=f"a table of {self.input_dim} rows",
                action='pass them as integers: keras.Input(..., dtype="int32")',
            )

    def _row_values(self) -> RowValues:
        seed = self.seed
        if seed is None:
            seed = zlib.crc32((self.path or self.name).encode()) + (get_random_seed() or 0)
        config: Any = keras.initializers.serialize(self.embeddings_initializer)
        return row_values(config, shape=(self.input_dim, self.output_dim), seed=seed)


def _checked_dim(name: str, dim: int) -> int:
    try:
        number = 0 if isinstance(dim, bool) else operator.index(dim)  # accepts NumPy's integers too
    except TypeError:
        number = 0
    if not 0 < number <= MAX_ROWS:
        raise InvalidInputError(f"{name} of an Embedding", received=dim, allowed=f"1 to {MAX_ROWS}")
    return number
