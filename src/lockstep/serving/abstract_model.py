"""The models that a prediction server runs on arrays, whatever they were saved as."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import numpy as np

from lockstep.serving.instances import Arrays, InputSpec, OutputSpec


class AbstractModel(ABC):
    """A model that takes arrays and returns arrays. Only one thread at a time may call its methods."""

    @property
    @abstractmethod
    def inputs(self) -> tuple[InputSpec, ...]:
        """The specifications of the model's inputs."""

    @property
    @abstractmethod
    def output_names(self) -> tuple[str, ...]:
        """The names of the model's outputs."""

    @property
    @abstractmethod
    def outputs(self) -> tuple[OutputSpec, ...]:
        """The specifications of the model's outputs."""

    @property
    @abstractmethod
    def max_batch_size(self) -> int:
        """The maximum number of instances in one run."""

    @abstractmethod
    def warm_up(self) -> None:
        """Compiles the programs of all batch sizes, if the shape of an instance is known in advance. Blocks.

        Raises:
            ModelError: the model cannot be compiled or run.
        """

    @abstractmethod
    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """Runs the model. The result of a row does not depend on the other rows. Blocks.

        Args:
            arrays: arrays of shape ``[n, *shape]`` by input name, with n at least 1.

        Returns:
            Arrays of shape ``[n, ...]`` by output name. Floats have at least 32 bits.

        Raises:
            ModelError: the model could not be run on the arrays.
        """
