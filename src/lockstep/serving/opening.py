"""Opens what a version serves: a Keras model, an exported program, or a custom prediction routine."""

from __future__ import annotations

from pathlib import Path

from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.model_files import EXPORTED_SUFFIX


def open_model(
    path: Path,
    *,
    max_batch_size: int,
    display_url: str | None = None,
    has_code: bool = False,
    program: str | None = None,
) -> AbstractModel:
    """Loads a model, which the end of its file's name tells the kind of.

    Args:
        path: the path of a ``.keras`` file, or of a program of ``jax.export`` (``.stablehlo``).
        max_batch_size: the maximum number of instances in one run.
        display_url: the URL of the model in error messages; the path by default.
        has_code: whether the version has packages with the classes of the model.
        program: the module that the version's job ran; None if it is not known.

    Raises:
        ModelError: the model cannot be loaded.
    """
    # Imported here because Keras takes seconds to start, and an exported program does not need it.
    if path.suffix == EXPORTED_SUFFIX:
        from lockstep.serving.exported_model import ExportedModel

        return ExportedModel.load(path, max_batch_size=max_batch_size, display_url=display_url)
    from lockstep.serving.model import LoadedModel
    from lockstep.serving.package_code import PackageCode
    from lockstep.strategies.backend import prepare_backend

    prepare_backend()  # for faster programs on CPUs
    return LoadedModel.load(
        path,
        max_batch_size=max_batch_size,
        display_url=display_url,
        prepare=PackageCode(has_code=has_code, program=program).register_classes,
    )
