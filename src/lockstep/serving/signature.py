"""The file beside an exported program that says what its inputs and outputs are called.

A program of ``jax.export`` has the shapes and dtypes of its inputs and outputs, but names only where its arguments are
dictionaries. `lockstep export` writes the names of the original model to ``NAME.stablehlo.json``, so that requests for
predictions stay the same.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, Self, final

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from lockstep.errors import ModelError
from lockstep.serving.instances import InputSpec

MAX_SIGNATURE_BYTES: Final = 2**20

_CONFIG: Final = ConfigDict(extra="forbid", frozen=True, alias_generator=to_camel, populate_by_name=True)


@final
class SignatureInput(BaseModel):
    """One input, as in `InputSpec`."""

    model_config = _CONFIG

    name: str
    shape: tuple[int | None, ...]
    dtype: str
    takes_pixels: bool = False


@final
class Signature(BaseModel):
    """The inputs and outputs of an exported model.

    Attributes:
        inputs: the inputs, in the order of the program's arguments.
        output_names: the names of the outputs, in the order of the program's results.
    """

    model_config = _CONFIG

    inputs: tuple[SignatureInput, ...] = Field(min_length=1)
    output_names: tuple[str, ...] = Field(min_length=1)

    @classmethod
    def of(cls, inputs: tuple[InputSpec, ...], output_names: tuple[str, ...]) -> Self:
        """Returns the signature of a model with these inputs and outputs."""
        return cls(
            inputs=tuple(
                SignatureInput(name=spec.name, shape=spec.shape, dtype=spec.dtype, takes_pixels=spec.takes_pixels)
                for spec in inputs
            ),
            output_names=output_names,
        )

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """Reads a signature; returns None if there is no such file.

        Raises:
            ModelError: the file is not a signature.
        """
        try:
            with path.open("rb") as file:
                return cls.model_validate_json(file.read(MAX_SIGNATURE_BYTES))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ModelError(
                f"{path.name} is not a signature: {f'{where}: ' if where else ''}{first['msg']}",
                action="write it with lockstep export, or leave it out",
            ) from None

    def to_json(self) -> str:
        """Returns the content of the file."""
        return self.model_dump_json(by_alias=True, indent=2) + "\n"

    def specs(self) -> tuple[InputSpec, ...]:
        """Returns the specifications of the inputs."""
        return tuple(
            InputSpec(name=each.name, shape=each.shape, dtype=each.dtype, takes_pixels=each.takes_pixels)
            for each in self.inputs
        )
