"""Elements of a data set: structures of tuples and dictionaries with NumPy leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast, final

import jax
import numpy as np

from lockstep.data.examples.ragged import RaggedArray, SparseArray
from lockstep.errors import InvalidInputError

_KINDS: Final = "biufcV"
"""The kinds of dtype that elements may have. V is the kind of JAX's small floats, such as bfloat16."""

_INT32: Final = np.iinfo(np.int32)
STRING: Final = np.dtype(object)
"""The dtype of text: each value is `bytes`, as in ``tf.data``."""


@final
@dataclass(frozen=True)
class TensorSpec:
    """The shape and dtype of a leaf, by the name of ``tf.TensorSpec``.

    Args:
        shape: the sizes of the dimensions, None for an unknown size; or None if nothing is known about the shape.
        dtype: NumPy's dtype, or its name; "string", `str` and `bytes` stand for text.
        name: stored, but without effect.

    Raises:
        InvalidInputError: If the shape or the dtype is not valid.
    """

    shape: Any = None
    dtype: Any = np.float32
    name: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _check_shape(self.shape))
        object.__setattr__(self, "dtype", dtype_named(self.dtype))

    def read(self, value: Any) -> Any:
        """Returns a value as a leaf of this dtype.

        Raises:
            InvalidInputError: If the value cannot be converted, or has another shape.
        """
        if self.dtype == STRING:
            leaf = to_leaf(value)
        else:
            try:
                leaf = np.asarray(value, self.dtype)[()]
            except (TypeError, ValueError) as error:
                raise InvalidInputError(
                    f"an element cannot be converted to {self.dtype}", received=repr(value)[:80], allowed=str(self)
                ) from error
        shape = np.shape(leaf)
        fits = self.shape is None or (
            len(shape) == len(self.shape)
            and all(want in (None, size) for want, size in zip(self.shape, shape, strict=True))
        )
        if not fits or (self.dtype == STRING) != (dtype_of(leaf) == STRING):
            raise InvalidInputError(
                "an element does not match its signature",
                received=f"shape {shape}, {dtype_name(dtype_of(leaf))}",
                allowed=str(self),
            )
        return leaf

    def __str__(self) -> str:
        """Describes the shape and the dtype."""
        return f"shape {self.shape}, {dtype_name(self.dtype)}"


def _check_shape(shape: Any) -> tuple[int | None, ...] | None:
    if shape is None:
        return None
    try:
        dims = tuple(None if dim is None or int(dim) == -1 else int(dim) for dim in shape)
    except (TypeError, ValueError):
        dims = None
    if dims is None or any(dim is not None and dim < 0 for dim in dims):
        raise InvalidInputError("a shape", received=repr(shape), allowed="a sequence of dims, None for an unknown one")
    return dims


def dtype_named(value: Any) -> np.dtype[Any]:
    """Checks a dtype or its name, and returns NumPy's dtype, `STRING` for text.

    Raises:
        InvalidInputError: If the value is not a dtype that elements may have.
    """
    if isinstance(value, str) and value == "string":
        return STRING
    try:
        dtype = np.dtype(jax.numpy.bfloat16 if isinstance(value, str) and value == "bfloat16" else value)
    except (TypeError, ValueError) as error:
        raise InvalidInputError("a dtype", received=repr(value), allowed='NumPy\'s, by name too; "string"') from error
    if dtype.kind in "OSU":
        return STRING
    if dtype.kind not in _KINDS:
        raise InvalidInputError("a dtype", received=str(dtype), allowed="numbers, booleans, text")
    return dtype


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns a dtype's name, "string" for text."""
    return "string" if dtype == STRING else dtype.name


def dtype_of(leaf: Any) -> np.dtype[Any]:
    """Returns a leaf's dtype, `STRING` for text."""
    return STRING if isinstance(leaf, bytes) else leaf.dtype


def map_leaves(function: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """Applies a function to each leaf of a structure, and returns a structure of the results.

    Args:
        function: a function of a leaf, and of the value at the same place in each of ``others``.
        structure: nested tuples and dictionaries.
        others: structures of the same form; their values at the places of leaves may be structures themselves.
    """
    if isinstance(structure, dict):
        items = cast("dict[Any, Any]", structure).items()
        return {key: map_leaves(function, value, *(other[key] for other in others)) for key, value in items}
    if isinstance(structure, tuple):
        mapped = [
            map_leaves(function, value, *parts)
            for value, *parts in zip(cast("tuple[Any, ...]", structure), *others, strict=True)
        ]
        return type(structure)(*mapped) if hasattr(structure, "_fields") else tuple(mapped)
    return function(structure, *others)


def leaves_of(structure: Any) -> list[Any]:
    """Returns the leaves of a structure, in order."""
    found: list[Any] = []
    map_leaves(found.append, structure)
    return found


def to_element(value: Any) -> Any:
    """Converts a value to an element: tuples and dictionaries stay, and everything else becomes a leaf.

    A list becomes an array. Python's floats become float32, and its whole numbers int32 if they fit, as in ``tf.data``;
    text becomes bytes.

    Raises:
        InvalidInputError: If a value is neither a number nor text.
    """
    if isinstance(value, Mapping):
        return {key: to_element(member) for key, member in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, tuple):
        members = [to_element(member) for member in cast("tuple[Any, ...]", value)]
        return type(value)(*members) if hasattr(value, "_fields") else tuple(members)
    return to_leaf(value)


def to_leaf(value: Any) -> Any:
    """Converts a value to a leaf: an array, a NumPy scalar, or bytes. None and data sets stay as they are."""
    if isinstance(value, np.generic | np.ndarray) and value.dtype.kind in _KINDS:
        return value[()] if isinstance(value, np.ndarray) else value
    if isinstance(value, bytes) or value is None or getattr(value, "is_lockstep_dataset", False):
        return value
    if isinstance(value, str):
        return value.encode()
    try:
        array = np.asarray(value)
    except (TypeError, ValueError) as error:
        raise _no_leaf(value, str(error).splitlines()[0]) from error
    if array.dtype.kind in "OSU":
        return _to_text(array, value)
    if array.dtype.kind not in _KINDS:
        raise _no_leaf(value, f"dtype {array.dtype}")
    if isinstance(value, bool | int | float | list) and not _has_numpy(value):
        array = _narrowed(array)
    return array[()]


def _no_leaf(value: Any, why: str) -> InvalidInputError:
    return InvalidInputError(
        "an element of a data set",
        received=f"{type(value).__name__} ({why})",
        allowed="arrays, numbers, text, tuples and dictionaries of these",
    )


def _to_text(array: np.ndarray, value: Any) -> Any:
    found = np.empty(array.shape, object)
    for place, member in np.ndenumerate(array):
        if not isinstance(member, str | bytes):
            raise _no_leaf(value, f"it holds {type(member).__name__}")
        found[place] = member.encode() if isinstance(member, str) else bytes(member)
    return found[()]


def _has_numpy(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return any(_has_numpy(member) for member in cast("Sequence[Any]", value))
    return hasattr(value, "dtype")


def _narrowed(array: np.ndarray) -> np.ndarray:
    """Converts an array of Python's numbers to the dtype that TensorFlow gives them."""
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64 and (not array.size or (array.min() >= _INT32.min and array.max() <= _INT32.max)):
        return array.astype(np.int32)
    return array


def copy_leaf(leaf: Any) -> Any:
    """Returns a leaf that the caller may write to: arrays are copied."""
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def call_with_element(function: Callable[..., Any], element: Any) -> Any:
    """Calls a function with an element as ``tf.data`` does: the members of a tuple are separate arguments."""
    return function(*cast("tuple[Any, ...]", element)) if type(element) is tuple else function(element)


def stack(elements: Sequence[Any]) -> Any:
    """Returns a batch: the elements' leaves, stacked along a new first dimension.

    Raises:
        InvalidInputError: If the elements differ in structure, shape or dtype.
    """
    return _join(elements, _stack_leaves)


def _join(elements: Sequence[Any], join: Callable[..., Any], *settings: Any) -> Any:
    if any(isinstance(element, SparseArray | RaggedArray) for element in _parts(elements[0])):
        raise InvalidInputError(
            "elements that are sparse or ragged cannot be batched", action="to_dense() in .map(), before .batch()"
        )
    try:
        return map_leaves(join, elements[0], *elements[1:], *settings)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        if isinstance(error, InvalidInputError):
            raise
        shapes = sorted({str(map_leaves(_describe, element)) for element in elements})[:2]
        raise InvalidInputError(
            "elements of one batch have different structures", received=" and ".join(shapes), allowed="one structure"
        ) from error


def _parts(structure: Any) -> list[Any]:
    """Returns a structure, and all structures and leaves within it."""
    inner = structure.values() if isinstance(structure, dict) else structure if isinstance(structure, tuple) else ()
    return [structure, *(part for member in inner for part in _parts(member))]


def _describe(leaf: Any) -> str:
    return str(np.shape(leaf))


def _stack_leaves(*leaves: Any) -> Any:
    first = leaves[0]
    if first is None and all(leaf is None for leaf in leaves):
        return None
    if isinstance(first, bytes) and all(isinstance(leaf, bytes) for leaf in leaves):
        return _texts(leaves)
    _check_alike(leaves)
    if isinstance(first, np.generic):
        return np.array(leaves, first.dtype)
    return np.stack(leaves)


def _texts(leaves: Sequence[bytes]) -> np.ndarray:
    found = np.empty(len(leaves), object)
    found[:] = leaves
    return found


def _check_alike(leaves: Sequence[Any], *, shapes_too: bool = True) -> None:
    for leaf in leaves:
        if leaf is None or isinstance(leaf, bytes) or not isinstance(leaf, np.generic | np.ndarray):
            raise InvalidInputError(
                "elements of one batch are not alike",
                received=" and ".join(sorted({type(each).__name__ for each in leaves})),
                allowed="numbers or arrays of one shape and dtype in each; a data set of a window by .flat_map()",
            )
    shapes = {leaf.shape for leaf in leaves} if shapes_too else {leaf.ndim for leaf in leaves}
    dtypes = {leaf.dtype for leaf in leaves}
    if len(shapes) > 1 or len(dtypes) > 1:
        many, what = (shapes, "shapes" if shapes_too else "numbers of dims") if len(shapes) > 1 else (dtypes, "dtypes")
        raise InvalidInputError(
            f"elements of one batch have different {what}",
            received=" and ".join(sorted(map(str, many))[:3]),
            allowed="one",
            action="pad them: .padded_batch()" if what == "shapes" else "cast them to one dtype in .map()",
        )


def pad(elements: Sequence[Any], shapes: Any, values: Any) -> Any:
    """Returns a batch whose leaves are padded to the same shape.

    Args:
        elements: elements that differ only in the sizes of their dimensions.
        shapes: a structure like an element's, with a shape for each leaf; a dimension of None or -1 is as large as the
            largest in the batch. None makes all dimensions so.
        values: a structure with the value to pad each leaf with, or one value for all; None for zeros and empty text.

    Raises:
        InvalidInputError: If the structures differ, or an element is larger than its padded shape.
    """
    first = elements[0]
    shapes = map_leaves(lambda leaf: None, first) if shapes is None else shapes
    if not isinstance(values, dict | tuple):
        values = map_leaves(lambda leaf, value=values: value, first)
    return _join(elements, _pad_leaves, shapes, values)


def _pad_leaves(*leaves: Any) -> Any:
    *arrays, shape, value = leaves
    if all(leaf is None for leaf in arrays):
        return None
    if all(isinstance(leaf, bytes) for leaf in arrays):
        return _texts(arrays)
    _check_alike(arrays, shapes_too=False)
    sizes = np.array([array.shape for array in arrays], np.int64).max(axis=0, initial=0)
    wanted = _check_shape(shape) or (None,) * arrays[0].ndim if shape is not None else (None,) * arrays[0].ndim
    if len(wanted) != arrays[0].ndim or any(
        want is not None and want < size for want, size in zip(wanted, sizes, strict=True)
    ):
        raise InvalidInputError(
            "an element is larger than its padded shape",
            received=f"shape {tuple(int(size) for size in sizes)}",
            allowed=f"up to {wanted}",
        )
    full = tuple(int(size) if want is None else want for want, size in zip(wanted, sizes, strict=True))
    is_text = arrays[0].dtype == STRING
    filling = (b"" if is_text else 0) if value is None else to_leaf(value)
    padded = np.full((len(arrays), *full), filling, arrays[0].dtype)
    for number, array in enumerate(arrays):
        padded[(number, *map(slice, array.shape))] = array
    return padded


def unstack(batch: Any) -> list[Any]:
    """Returns the rows of a batch as elements.

    Raises:
        InvalidInputError: If the leaves have different numbers of rows, or if there is no leaf with rows.
    """
    counts = {np.shape(leaf)[:1] for leaf in leaves_of(batch) if leaf is not None}
    if len(counts) != 1 or counts == {()}:
        raise InvalidInputError(
            "an element to split into rows",
            received=f"leaves of shapes {sorted(str(np.shape(leaf)) for leaf in leaves_of(batch))}",
            allowed="arrays with one number of rows",
        )
    ((num_rows,),) = counts
    return [take_row(batch, row) for row in range(num_rows)]


def take_row(batch: Any, row: int) -> Any:
    """Returns a row of a batch as an element."""
    return map_leaves(lambda leaf: None if leaf is None else copy_leaf(leaf[row]), batch)


def spec_of(element: Any) -> Any:
    """Returns the shapes and dtypes of an element."""
    return map_leaves(lambda leaf: None if leaf is None else TensorSpec(np.shape(leaf), dtype_of(leaf)), element)


def with_unknown_rows(spec: Any, before: Any) -> Any:
    """Makes the number of rows unknown in the spec of a function's result, if it is unknown in the argument's spec."""
    unknown = {leaf.shape[:1] for leaf in leaves_of(before) if leaf is not None and leaf.shape is not None}
    if unknown != {(None,)} or spec is None:
        return spec

    def loosen(leaf: TensorSpec | None) -> TensorSpec | None:
        return leaf if leaf is None or not leaf.shape else TensorSpec((None, *leaf.shape[1:]), leaf.dtype)

    return map_leaves(loosen, spec)


def describe(structure: Any) -> str:
    """Describes the leaves of a structure, such as "ndarray of shape (3,)"."""

    def describe_leaf(leaf: Any) -> str:
        return "nothing" if leaf is None else f"{type(leaf).__name__} of shape {np.shape(leaf)}"

    return str(map_leaves(describe_leaf, structure))
