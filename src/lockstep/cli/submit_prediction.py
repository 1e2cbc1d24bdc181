"""``lockstep submit-prediction``, with the flags of ``gcloud ai-platform jobs submit prediction``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.completing import complete_model, complete_version_of_model
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, ProjectOption, absolute_url, connect
from lockstep.cli.dry_run import dry_run_answer
from lockstep.cli.job_flags import read_accelerator, read_pairs
from lockstep.cli.submit import submit_body
from lockstep.errors import ConfigError, InvalidInputError
from lockstep.jobs.input.predictions import PredictionInput, ignored_in_prediction, parse_prediction
from lockstep.jobs.parsing.yaml_documents import read_yaml

IMAGES: Final = "image-files"
FORMATS: Final = ("json", "text", "tf-record", "tf-record-gzip", "csv", IMAGES)
OUTPUT_FORMATS: Final = ("json", "csv")


@answers("JobForm", "PreviewForm", hints=True)
def submit_prediction(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name: letters, digits and underscores.")],
    model: Annotated[
        str | None, typer.Option(help="The deployed model that predicts.", autocompletion=complete_model)
    ] = None,
    version: Annotated[
        str | None,
        typer.Option(
            help="Its version. Default: the model's default version.", autocompletion=complete_version_of_model
        ),
    ] = None,
    model_dir: Annotated[
        str | None, typer.Option(help="URL of a .keras file that predicts, or of its folder, instead of --model.")
    ] = None,
    input_paths: Annotated[
        str | None, typer.Option(help="URLs of the input files, with wildcards, separated by commas.")
    ] = None,
    output_path: Annotated[str | None, typer.Option(help="URL of the folder for predictions.")] = None,
    data_format: Annotated[str | None, typer.Option(help=f"Format of the input: {', '.join(FORMATS)}.")] = None,
    output_data_format: Annotated[
        str | None, typer.Option(help=f"Format of the predictions: {', '.join(OUTPUT_FORMATS)}. Default: json.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="Instances in one run of the model.")] = None,
    max_worker_count: Annotated[int | None, typer.Option(min=1, help="Number of replicas. Default: 1.")] = None,
    machine_type: Annotated[str | None, typer.Option(help="Machine type of each replica.")] = None,
    accelerator: Annotated[str | None, typer.Option(help="Accelerators of each replica: count=N,type=T.")] = None,
    key_field: Annotated[
        str | None, typer.Option(help="Field of an instance that is copied to its prediction, not sent to the model.")
    ] = None,
    package_uri: Annotated[
        list[str] | None,
        typer.Option(help="Package with custom classes of the model; only with --model-dir; may be repeated."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with predictionInput; flags take precedence.")] = None,
    region: Annotated[str | None, typer.Option(help="Region whose prices apply.")] = None,
    runtime_version: Annotated[str | None, typer.Option(help="AI Platform's runtime version; ignored.")] = None,
    signature_name: Annotated[str | None, typer.Option(help="The model's signature: serving_default.")] = None,
    labels: Annotated[str | None, typer.Option(help="Labels of the job: key=value,key=value.")] = None,
    stream_logs: Annotated[
        bool, typer.Option("--stream-logs/--async", help="Print the log until the job ends, or return at once.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the job, and submit nothing.")] = False,
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Submit a batch prediction: predict files of instances, and write files of predictions.

    Prints the log of the job until it ends. Ctrl-C ends the printing, but not the job.
    """
    body = _read_config(config, job=job)
    asked = body["predictionInput"]
    given: dict[str, Any] = {
        "batchSize": None if batch_size is None else str(batch_size),
        "maxWorkerCount": None if max_worker_count is None else str(max_worker_count),
        "region": region,
        "runtimeVersion": runtime_version,
        "signatureName": signature_name,
        "inputPaths": None if input_paths is None else [path.strip() for path in input_paths.split(",")],
        "outputPath": output_path,
        "outputDataFormat": _choice(output_data_format, OUTPUT_FORMATS, flag="--output-data-format"),
        "dataFormat": _choice(data_format, FORMATS, flag="--data-format"),
    }
    own: dict[str, Any] = {
        "machineType": machine_type,
        "acceleratorConfig": None if accelerator is None else read_accelerator(accelerator, flag="--accelerator"),
        "keyField": key_field,
        "packageUris": [absolute_url(url, what="--package-uri") for url in package_uri or ()] or None,
    }
    if data_format == IMAGES:
        given["dataFormat"], own["dataFormat"] = None, "IMAGE_FILES"
        asked.pop("dataFormat", None)
    if named := _model(model, version, model_dir, project=project):
        asked = {name: value for name, value in asked.items() if name not in ("modelName", "versionName", "uri")}
    asked |= {name: value for name, value in {**given, **named}.items() if value is not None}
    own = {**asked.pop("lockstep", {}), **{name: value for name, value in own.items() if value is not None}}
    body["predictionInput"] = {**asked, **({"lockstep": own} if own else {})}
    if labels is not None:
        body["labels"] = {**body.get("labels", {}), **read_pairs(labels, flag="--labels")}
    request = parse_prediction(body, source="flags" if config is None else str(config))
    body["predictionInput"] = _with_absolute_urls(request.prediction_input)
    for line in ignored_in_prediction(request.prediction_input):
        ERRORS.print(f"note: {line}", style="yellow")
    with connect(project) as client:
        if dry_run:
            python = "the node's, and what the model's packages list"
            return dry_run_answer(body, project=project, client=client, python=python)
        return submit_body(client, body, stream_logs=stream_logs, output_format=output_format)


def _read_config(path: Path | None, *, job: str) -> dict[str, Any]:
    """Returns the body of the request as far as the file gives it, with a mutable ``predictionInput``."""
    if path is None:
        return {"jobId": job, "predictionInput": {}}
    document = read_yaml(path, flag="--config")
    asked = document.get("predictionInput") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(asked, dict):
        raise ConfigError(f"{path}", received=document, allowed="keys and values, with predictionInput")
    if document.get("jobId") not in (None, job):
        raise ConfigError(
            f"{path}: jobId", received=document["jobId"], allowed=f"{job}, as on the command line, or no jobId"
        )
    return {**document, "jobId": job, "predictionInput": dict(asked)}


def _model(model: str | None, version: str | None, model_dir: str | None, *, project: str) -> dict[str, str]:
    """Returns the field that names the model; empty if no flag does."""
    if model is not None and model_dir is not None:
        raise InvalidInputError("give either --model or --model-dir")
    if version is not None and model is None:
        raise InvalidInputError("--version", received=version, allowed="only with --model")
    if model_dir is not None:
        return {"uri": model_dir}
    if model is None:
        return {}
    name = f"projects/{project}/models/{model}"
    return {"modelName": name} if version is None else {"versionName": f"{name}/versions/{version}"}


def _choice(text: str | None, allowed: tuple[str, ...], *, flag: str) -> str | None:
    """Returns the contract's name of a format, such as ``TF_RECORD`` for "tf-record"."""
    if text is None:
        return None
    name = text.lower().replace("_", "-")
    if name not in allowed:
        raise InvalidInputError(flag, received=text, allowed=allowed)
    return name.upper().replace("-", "_")


def _with_absolute_urls(asked: PredictionInput) -> dict[str, Any]:
    """Returns a prediction input as JSON, with all local paths made absolute."""
    document: dict[str, Any] = asked.to_json()
    document["outputPath"] = absolute_url(asked.output_url, what="outputPath")
    if asked.uri is not None:
        document["uri"] = absolute_url(asked.uri, what="uri")
    document["inputPaths"] = [
        absolute_url(path, what="inputPaths") + ("/" if path.endswith("/") and "://" not in path else "")
        for path in asked.input_paths
    ]
    return document
