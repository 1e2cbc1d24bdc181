"""A saved program of ``jax.export``, run on arrays. Keras is not needed, and not imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, final

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from lockstep.errors import ModelError, counted
from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.images import num_channels_of
from lockstep.serving.instances import Arrays, InputSpec, OutputSpec, plain_dtype
from lockstep.serving.model_files import SIGNATURE_SUFFIX
from lockstep.serving.programs import Programs, batch_sizes
from lockstep.serving.signature import Signature

_BATCH: Final = "its first dimension is the number of instances, the same for all inputs and outputs"


@final
class ExportedModel(AbstractModel):
    """A program of ``jax.export`` with the weights in it. Only one thread at a time may call `predict`.

    The arguments of the program are arrays, or lists, tuples or dictionaries of them. The first dimension of each is
    the number of instances: a symbol, or a number. Batches are padded to a number.

    Args:
        exported: the program.
        signature: the names of its inputs and outputs. Without it, an input has the key that it has in a dictionary, or
            is called ``input_0``, ``input_1`` and so on by its position, and outputs accordingly.
        max_batch_size: the maximum number of instances in one run. A fixed number of instances of the program counts
            instead.

    Raises:
        ModelError: the program has no batch dimension or is for several devices, or the signature is that of another.
    """

    def __init__(
        self, exported: jax.export.Exported, *, signature: Signature | None = None, max_batch_size: int = 64
    ) -> None:
        if exported.nr_devices != 1:
            raise ModelError("the program is for several devices", received=exported.nr_devices, allowed="1")
        size = _batch_size(exported)
        in_avals = exported.in_avals
        names = _names(exported.in_tree, "input")
        self._inputs = tuple(_spec(name, aval) for name, aval in zip(names, in_avals, strict=True))
        self._output_names = _names(exported.out_tree, "output")
        self._out_avals = exported.out_avals
        if signature is not None:
            self._adopt(signature)

        def call(arrays: list[Any]) -> Sequence[Any]:
            # The values of small floats that NumPy lacks arrive as float32.
            typed = [jnp.asarray(array, aval.dtype) for array, aval in zip(arrays, in_avals, strict=True)]
            args, kwargs = jax.tree_util.tree_unflatten(exported.in_tree, typed)
            return jax.tree_util.tree_leaves(exported.call(*args, **kwargs))

        self._programs = Programs(
            call,
            inputs=self._inputs,
            output_names=self._output_names,
            sizes=batch_sizes(max_batch_size) if size is None else (size,),
        )

    @classmethod
    def load(cls, path: Path, *, max_batch_size: int = 64, display_url: str | None = None) -> ExportedModel:
        """Loads a program, and the signature beside it if there is one.

        Args:
            path: the path of the program's file.
            max_batch_size: the maximum number of instances in one run.
            display_url: the URL of the model in error messages; the path by default.

        Raises:
            ModelError: the file does not exist, is not such a program, or cannot be served.
        """
        what = f"cannot load the model {display_url or path}"
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise ModelError(f"{what}: there is no such file") from None
        try:
            exported = jax.export.deserialize(bytearray(data))
        except Exception as error:  # of any class, from the parser of the format
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise ModelError(
                f"{what}: it is not a program of jax.export that this version of JAX reads: {reason[:300]}",
                action="export it again with lockstep export --to stablehlo",
            ) from error
        try:
            signature = Signature.read(path.with_name(path.name + SIGNATURE_SUFFIX))
            return cls(exported, signature=signature, max_batch_size=max_batch_size)
        except ModelError as error:
            raise ModelError(f"{what}: {error}") from None

    def _adopt(self, signature: Signature) -> None:
        """Takes names from a signature, which has to fit the program.

        Raises:
            ModelError: it does not.
        """
        named = signature.specs()
        found = [(spec.shape, spec.dtype) for spec in self._inputs]
        if [(spec.shape, spec.dtype) for spec in named] != found:
            raise ModelError(
                "the signature beside the program has other inputs",
                received=[spec.to_json() for spec in named],
                allowed=f"{[spec.to_json() for spec in self._inputs]}",
            )
        if len(signature.output_names) != len(self._output_names):
            raise ModelError(
                "the signature beside the program has another number of outputs",
                received=len(signature.output_names),
                allowed=str(len(self._output_names)),
            )
        self._inputs = named
        self._output_names = signature.output_names
        for names in ([spec.name for spec in named], list(self._output_names)):
            if len(set(names)) != len(names):
                raise ModelError("the signature beside the program has a name twice", received=names)

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        """The specifications of the model's inputs."""
        return self._inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        """The names of the model's outputs."""
        return self._output_names

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The specifications of the model's outputs."""
        return tuple(map(_output_spec, self._output_names, self._out_avals))

    @property
    def max_batch_size(self) -> int:
        """The maximum number of instances in one run."""
        return self._programs.max_batch_size

    def warm_up(self) -> None:
        """Compiles the programs of all batch sizes; see `AbstractModel.warm_up`."""
        self._programs.warm_up()

    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Runs the model; see `AbstractModel.predict`."""
        return self._programs.predict(arrays)


def _batch_size(exported: jax.export.Exported) -> int | None:
    """Returns the fixed number of instances of a program; None if it takes any number.

    Raises:
        ModelError: an input or output has no dimension for instances.
    """
    avals = [*exported.in_avals, *exported.out_avals]
    if not exported.in_avals or not exported.out_avals:
        count = counted(len(exported.in_avals), "input")
        raise ModelError("the program takes or returns nothing", received=count, allowed="an input and an output")
    first = exported.in_avals[0].shape[:1]
    for aval in avals:
        if not aval.shape or aval.shape[:1] != first:
            raise ModelError("an array of the program has no batch dimension", received=str(aval), allowed=_BATCH)
    size = first[0]
    if isinstance(size, int) and size > 0:
        return size
    if not str(size).isidentifier():
        raise ModelError("the batch dimension of the program", received=str(size), allowed="a number, or a symbol")
    return None


def _spec(name: str, aval: Any) -> InputSpec:
    shape = tuple(size if isinstance(size, int) else None for size in aval.shape[1:])
    dtype = np.dtype(aval.dtype)
    if jax.dtypes.canonicalize_dtype(dtype) != dtype:
        raise ModelError(f"input {name} of the program has 64 bits, which JAX does not compute with by default")
    if dtype.kind not in "biuf":
        if not jnp.issubdtype(dtype, jnp.floating):
            raise ModelError(f"input {name} of the program is not a real number", received=dtype.name)
        return InputSpec(name=name, shape=shape, dtype="float32")
    takes_pixels = dtype == np.uint8 and num_channels_of(shape) is not None
    return InputSpec(name=name, shape=shape, dtype=dtype.name, takes_pixels=takes_pixels)


def _output_spec(name: str, aval: Any) -> OutputSpec:
    shape = tuple(size if isinstance(size, int) else None for size in aval.shape[1:])
    return OutputSpec(name=name, shape=shape, dtype=plain_dtype(np.dtype(aval.dtype)))


def _names(tree: Any, kind: str) -> tuple[str, ...]:
    """Returns a name for each leaf of a structure: its key, if all leaves have different ones, or else its number."""
    paths = jax.tree_util.tree_flatten_with_path(jax.tree_util.tree_unflatten(tree, range(tree.num_leaves)))[0]
    keys = [path[-1].key for path, _ in paths if path and isinstance(path[-1], jax.tree_util.DictKey)]
    if len(keys) == tree.num_leaves and len({*map(str, keys)}) == len(keys):
        return tuple(map(str, keys))
    return (kind,) if tree.num_leaves == 1 else tuple(f"{kind}_{index}" for index in range(tree.num_leaves))
