"""The embedding layer whose table lies on parameter servers, and is an ordinary one under every other strategy."""

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
    """Turns whole numbers into rows of a table.

    Under `lockstep.parameter_server.ParameterServerStrategy` the table lies on the parameter servers, row n on the
    n-th modulo their number. A step pulls the rows of its batch's different ids, and pushes gradients for them alone.
    A row takes memory, on its server, once an id has been met; its first values depend on the id and the seed alone.
    There, `embeddings` has no rows. Under every other strategy the layer is an ordinary embedding of the same first
    values, which the model's own optimizer trains.

    Args:
        input_dim: how many ids there are: 0 to this less one; up to 2**31 - 1.
        output_dim: how many values a row has.
        embeddings_initializer: a Keras initializer whose values can be drawn row by row: "uniform", "normal", "zeros",
            "glorot_uniform" and the like.
        optimizer: how the servers update rows: "sgd", "adagrad" (row-wise) or "adam" (lazy), or one with options by
            `lockstep.parameter_server.row_optimizer`. By default what is nearest to the model's optimizer, with its
            learning rate.
        embeddings_regularizer: a Keras regularizer, applied to the rows that a batch uses.
        mask_zero: whether id 0 marks what is not there, as in ``keras.layers.Embedding``.
        seed: of the first values; by default Keras's seed and the layer's path.
        **kwargs: ``name`` and what else each layer of Keras takes.

    Input shape: whole numbers of any shape, or floats of so many bits that each id is one of them.

    Output shape: the input's and output_dim; float32.

    Raises:
        InvalidInputError: a number is not positive, the initializer cannot draw rows by themselves, or the optimizer
            is none of rows.
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
        self.autocast = False  # a float of few bits is another id
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
        self._row_values()  # refuses at once

    @override
    def build(self, input_shape: Any = None) -> None:
        """Makes the table, or what stands for it; Keras calls it."""
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
        """Returns what gives rows their first values."""
        return self._row_values()

    @override
    def __call__(self, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the layer; Keras makes 32 bits of what it is given, and looks for that before `call`.

        Raises:
            InvalidInputError: an id does not fit.
        """
        check_bits(inputs)
        return super().__call__(inputs, *args, **kwargs)

    @override
    def call(self, inputs: Any) -> Any:
        """Returns rows.

        Raises:
            InvalidInputError: the ids are floats of so few bits that not each id of the table is one.
            WrongStateError: the table lies on servers, and this code is neither a step of Keras's nor a closure, or is
                outside of the strategy's scope.
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
        """Returns where ids are not 0, with mask_zero."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    @override
    def compute_output_shape(self, input_shape: Any) -> tuple[Any, ...]:
        """Returns the input's shape and output_dim."""
        return (*input_shape, self.output_dim)

    @override
    def compute_output_spec(self, inputs: Any) -> Any:
        """Returns what Keras's functional models are made of.

        Raises:
            InvalidInputError: as `call`.
        """
        self._check_dtype(inputs.dtype)
        return keras.KerasTensor(self.compute_output_shape(inputs.shape), dtype="float32")

    @override
    def get_config(self) -> dict[str, Any]:
        """Returns what makes the same layer again."""
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
        """Writes the table into a file of weights; Keras calls it. Warns where its rows lie on servers."""
        if not self.embeddings.shape[0]:
            LOGGER.warning(
                "the saved file holds no rows of embedding %s: they lie on the parameter servers; checkpoints have "
                "them, and are read under any strategy: lockstep.training.BackupAndRestore(directory)",
                self.path,
            )
        super().save_own_variables(store)

    @override
    def load_own_variables(self, store: Any) -> None:
        """Reads the table from a file of weights; Keras calls it.

        Raises:
            InvalidInputError: it was saved where the table lay on servers and is wanted here, or the other way round.
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
        """Makes a layer again."""
        own = config.pop("optimizer", None)
        return cls(**config, optimizer=None if own is None else row_optimizer(**own))

    def _whole(self, ids: Any) -> Any:
        """Returns ids as whole numbers, where none of the table's has been rounded."""
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
                action='have them come as whole numbers: keras.Input(..., dtype="int32")',
            )

    def _row_values(self) -> RowValues:
        seed = self.seed
        if seed is None:
            seed = zlib.crc32((self.path or self.name).encode()) + (get_random_seed() or 0)
        config: Any = keras.initializers.serialize(self.embeddings_initializer)
        return row_values(config, shape=(self.input_dim, self.output_dim), seed=seed)


def _checked_dim(name: str, dim: int) -> int:
    try:
        number = 0 if isinstance(dim, bool) else operator.index(dim)  # of NumPy's whole numbers too
    except TypeError:
        number = 0
    if not 0 < number <= MAX_ROWS:
        raise InvalidInputError(f"{name} of an Embedding", received=dim, allowed=f"1 to {MAX_ROWS}")
    return number
