"""Keras's data adapters, which ``fit`` makes from its arguments. Keras does not export them."""

# Keras is only partly typed, so the type checker does not know the types of its values in this file.
# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportUntypedBaseClass=false

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, final

from keras.src.trainers.data_adapters import (
    data_adapter_utils,
    get_data_adapter,
    is_grain_dataset,
    is_tf_dataset,
    is_torch_dataloader,
)
from keras.src.trainers.data_adapters.array_data_adapter import can_convert_arrays
from keras.src.trainers.data_adapters.array_slicing import train_validation_split
from keras.src.trainers.data_adapters.data_adapter import DataAdapter
from keras.src.trainers.data_adapters.data_adapter_utils import class_weight_to_sample_weights

__all__ = [
    "AbstractBatchAdapter",
    "DataAdapter",
    "can_convert_arrays",
    "class_weight_to_sample_weights",
    "get_data_adapter",
    "is_grain_dataset",
    "is_tf_dataset",
    "is_torch_dataloader",
    "skip_epochs",
    "train_validation_split",
]


class AbstractBatchAdapter(DataAdapter):
    """The base class of data that ``fit`` uses without conversion, because it is a data adapter."""

    @abstractmethod
    def iterate(self) -> Iterator[Any]:
        """Returns an iterator over one pass of batches: structures of arrays whose first dim is the rows."""

    @final
    def get_jax_iterator(self, super_batch: int | None = None) -> Iterator[Any]:
        """Returns the batches of `iterate`. With `super_batch`, it returns lists of so many batches, for Keras 3.16."""
        batches = iter(self.iterate())
        return batches if not super_batch else _in_lists(batches, super_batch)


def skip_epochs(adapter: DataAdapter, num_epochs: int) -> None:
    """Makes an adapter of arrays use the order of a later epoch. Since Keras 3.16, it counts epochs for its order."""
    if hasattr(adapter, "_epoch"):
        vars(adapter)["_epoch"] += num_epochs


def _in_lists(batches: Iterator[Any], size: int) -> Iterator[Any]:
    make_list = getattr(data_adapter_utils, "PartialBatchList")  # noqa: B009 - of Keras 3.16
    while found := list(itertools.islice(batches, size)):
        yield make_list(found)
