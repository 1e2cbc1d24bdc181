"""``lockstep export``."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Final

import typer

from lockstep.cli.answers import Answer, answers
from lockstep.cli.completing import complete_job
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ProjectOption, connect, size
from lockstep.errors import InvalidInputError, ModelError
from lockstep.jobs.running.saved_models import model_to_deploy

SUFFIX: Final = ".keras"
_QUIET: Final = {
    "TF_CPP_MIN_LOG_LEVEL": "3",
    "TF_ENABLE_ONEDNN_OPTS": "0",  # TensorFlow says at each start that it uses this library
    "JAX_PLATFORMS": "cpu",  # the export is for all platforms, and the check needs none in particular
}


class FormatName(StrEnum):
    """The formats. `lockstep.serving.exporting.Format` has the same, but imports Keras."""

    SAVED_MODEL = "saved_model"
    ONNX = "onnx"
    STABLEHLO = "stablehlo"


@answers("ExportForm")
def export(
    to: Annotated[FormatName, typer.Option("--to", help="The format.")],
    model_file: Annotated[
        str | None, typer.Argument(metavar="MODEL_FILE", help="The .keras file: a path, or the URL of an object.")
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(help="Export the model that this job saved, instead of a file.", autocompletion=complete_job),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(help="The file, or the folder of a SavedModel, to write. Default: named after MODEL_FILE."),
    ] = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            help="Module of yours that defines the model's custom classes, from the current folder or the environment; "
            "it is imported, so its code runs; may be repeated."
        ),
    ] = None,
    project: ProjectOption = DEFAULT_PROJECT,
) -> Answer:
    """Export a .keras file to another format, and check it against the original on random inputs.

    saved_model is TensorFlow's format, for TensorFlow Serving; it needs the package tensorflow. onnx is for ONNX
    Runtime; it needs jax2onnx and onnxruntime. stablehlo is a serialized jax.export program. Each takes batches of any
    size.
    """
    if (model_file is None) == (job is None):
        raise InvalidInputError("give either MODEL_FILE or --job")
    url = model_file if model_file is not None else _job_model(job or "", project=project)
    if not url.endswith(SUFFIX):
        raise InvalidInputError("MODEL_FILE", received=url, allowed=f"a {SUFFIX} file")
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    logging.getLogger("absl").setLevel(logging.ERROR)  # TensorFlow warns of gradients, which an export does not have
    # Imported here so that other commands start without Keras, and after the variables are set.
    from lockstep.serving.exporting import Format, export_model
    from lockstep.storage import open_bucket, split_url

    name = url.rpartition("/")[2].removesuffix(SUFFIX)
    with tempfile.TemporaryDirectory(prefix="lockstep-export-") as folder:
        file = Path(url)
        if "://" in url:
            file = Path(folder) / f"model{SUFFIX}"
            bucket_url, key = split_url(url)
            open_bucket(bucket_url).download(key, path=file)
        kind = Format(to.value)
        made = export_model(
            file,
            to=kind,
            path=output or Path(f"{name}{kind.suffix}"),
            display_url=url,
            import_code=lambda: _import_modules(module or ()),
        )
    sizes = ", ".join(map(str, made.batch_sizes))
    lines = (
        f"exported {url} to {made.path} ({to}, {size(made.size_bytes)})",
        f"checked on random batches of {sizes}: the largest difference is {made.max_difference:.2g}",
        f"allowed: {made.tolerance:g}, plus {made.tolerance:g} of the original's value",
    )
    return Answer(
        show=lambda: [OUTPUT.print(line) for line in lines],
        document={
            "path": str(made.path),
            "format": to.value,
            "sizeBytes": made.size_bytes,
            "batchSizes": list(made.batch_sizes),
            "maxDifference": float(made.max_difference),
            "tolerance": float(made.tolerance),
        },
    )


def _job_model(job: str, *, project: str) -> str:
    with connect(project) as client:
        found = client.job(job)
        return model_to_deploy([model["url"] for model in client.job_models(found["jobId"])], job=found)


def _import_modules(modules: Sequence[str]) -> None:
    if modules and (folder := os.getcwd()) not in sys.path:
        sys.path.insert(0, folder)
    for name in modules:
        try:
            importlib.import_module(name)
        except (Exception, SystemExit) as error:  # the module's code may raise anything
            reason = (str(error) or "no reason given").splitlines()[0][:300]
            raise ModelError(f"--module: {name} cannot be imported: {type(error).__name__}: {reason}") from error
