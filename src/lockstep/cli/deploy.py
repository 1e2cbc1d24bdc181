"""``lockstep deploy``."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.completing import complete_job
from lockstep.cli.console import DEFAULT_PROJECT, OUTPUT, ModelArgument, ProjectOption, absolute_url, connect
from lockstep.cli.job_flags import read_accelerator
from lockstep.cli.operations import TimeoutOption, short_name, timeout_of, wait_for_operation
from lockstep.cli.traffic import give_traffic, traffic_text
from lockstep.errors import ConflictError, InvalidInputError, ModelError
from lockstep.jobs.running.saved_models import folder_to_deploy, model_to_deploy

if TYPE_CHECKING:
    from lockstep.client import Client


@answers("VersionForm", hints=True)
def deploy(
    model: ModelArgument,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGS", help="Arguments of the container's entry point, with --image-uri."),
    ] = None,
    job: Annotated[
        str | None,
        typer.Option(
            help="Deploy the model that this job saved, wherever in its output folder.", autocompletion=complete_job
        ),
    ] = None,
    model_url: Annotated[
        str | None,
        typer.Option(help="URL of the .keras or .stablehlo file to deploy, or of its folder."),
    ] = None,
    package_uri: Annotated[
        list[str] | None,
        typer.Option(
            help="Package (.tar.gz or .whl) with custom classes of the model; only with --model-url; may be repeated."
        ),
    ] = None,
    prediction_class: Annotated[
        str | None,
        typer.Option(
            help="Custom prediction routine: a class of the package, such as trainer.predictor.Predictor, with "
            "from_path and predict. --model-url is then a folder of any files, for from_path."
        ),
    ] = None,
    image_uri: Annotated[
        str | None,
        typer.Option(
            help="Container image with a server of your own, such as registry.example.com/server:1. Then --model-url "
            "is a folder of any files for it, or left out."
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="Port of the container's server. Default: 8080.")
    ] = None,
    predict_route: Annotated[
        str | None,
        typer.Option(
            help="Path of the container's server that takes instances. Default: "
            "/v1/models/MODEL/versions/VERSION:predict."
        ),
    ] = None,
    health_route: Annotated[
        str | None,
        typer.Option(
            help="Path that answers with status 200 when the container's server can answer requests. Default: "
            "/v1/models/MODEL/versions/VERSION."
        ),
    ] = None,
    machine_type: Annotated[
        str | None, typer.Option(help="Machine type of the prediction server. Default: n1-standard-4.")
    ] = None,
    accelerator: Annotated[
        str | None, typer.Option(help="Accelerators of the prediction server: count=N,type=T.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="The version's name. Default: the next free one of v1, v2, ...")
    ] = None,
    min_servers: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Minimum number of prediction servers; 0 ends the last one when there are no requests. With "
            "--max-servers. Default: 1.",
        ),
    ] = None,
    max_servers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Maximum number of prediction servers, which follow the load. Default: always one server."
        ),
    ] = None,
    log_requests: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Share of the requests that are written to the bucket, such as 0.1. Default: none."
        ),
    ] = None,
    request_log_url: Annotated[
        str | None,
        typer.Option(help="Folder for --log-requests. Default: request-logs in the project's folder of the bucket."),
    ] = None,
    max_batch_size: Annotated[
        int | None,
        typer.Option(min=1, help="Maximum number of instances that the model runs on at a time. Default: 64."),
    ] = None,
    max_latency_ms: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="How long a request waits for others to share a run of the model, in milliseconds. Default: 0; "
            "requests that arrive during a run share the next one.",
        ),
    ] = None,
    traffic: Annotated[
        int,
        typer.Option(
            min=0,
            max=100,
            help="Percent of the requests to the model that the version answers once it is ready. The other versions "
            "share the rest as they did.",
        ),
    ] = 100,
    timeout: TimeoutOption = None,
    project: ProjectOption = DEFAULT_PROJECT,
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Deploy a model as a new version, wait until it is ready, and give it traffic.

    The version gets all traffic of the model, unless --traffic says less.
    """
    if (job is None) == (model_url is None and image_uri is None):
        raise InvalidInputError("give either --job or --model-url or --image-uri")
    if job is not None and package_uri:
        raise InvalidInputError("--package-uri is only for --model-url; with --job, the job's own packages are used")
    if prediction_class is not None and model_url is not None and not package_uri:
        raise InvalidInputError("--prediction-class needs the package with the class", action="add --package-uri")
    version_fields = _container(
        image_uri, port=port, predict_route=predict_route, health_route=health_route, arguments=arguments
    )
    version_fields |= _request_logging(log_requests, url=request_log_url)
    version_fields |= _batching(max_batch_size, max_latency_ms=max_latency_ms)
    if machine_type is not None:
        version_fields["machine_type"] = machine_type
    if accelerator is not None:
        version_fields["accelerator"] = read_accelerator(accelerator, flag="--accelerator")
    auto_scaling = _auto_scaling(min_servers, max_servers)
    timeout_s = timeout_of(timeout)
    with connect(project) as client:
        if job is not None:
            url, packages, module = _model_of_job(client, job, is_routine=prediction_class is not None)
        else:
            url = "" if model_url is None else absolute_url(model_url, what="--model-url")
            packages, module = [absolute_url(url, what="--package-uri") for url in package_uri or ()], None
        with contextlib.suppress(ConflictError):  # another version of an existing model
            client.create_model(model)
        name = version or _next_version(client, model)
        operation = client.create_version(
            model,
            name=name,
            deployment_uri=url,
            package_uris=packages,
            python_module=module,
            prediction_class=prediction_class,
            auto_scaling=auto_scaling,
            **version_fields,
        )
        _wait_until_ready(client, operation, model=model, version=name, traffic=traffic, timeout_s=timeout_s)
        lines = [f"model {model}, version {name} (default), is ready: {url or image_uri}"]
        if traffic == 100:
            client.set_default_version(model, name=name)
        else:
            split = give_traffic(client, model, version=name, percent=traffic)
            lines = [
                f"model {model}, version {name}, is ready: {url or image_uri}",
                f"traffic of {model}: {traffic_text(split)}",
            ]
        found = client.version(model, name=name) if output_format is Format.JSON else None
    return Answer(
        show=lambda: [OUTPUT.print(line) for line in (*lines, f"POST /v1/projects/{project}/models/{model}:predict")],
        document=found,
        hint=f"to request predictions: lockstep predict {shlex.quote(model)} --json-request FILE",
    )


def _wait_until_ready(
    client: Client, operation: Mapping[str, Any], *, model: str, version: str, traffic: int, timeout_s: float | None
) -> None:
    give = f"set-default {model}/{version}" if traffic == 100 else f"traffic {model}"
    done = wait_for_operation(
        client,
        operation,
        model=model,
        version=version,
        timeout_s=timeout_s,
        afterwards=f"once it is READY, `lockstep models {give}` gives it traffic" if traffic else "",
    )
    if "error" in done:
        raise ModelError(f"version {version} of {model} cannot be served: {done['error']['message']}")


def _container(
    image_uri: str | None,
    *,
    port: int | None,
    predict_route: str | None,
    health_route: str | None,
    arguments: list[str] | None,
) -> dict[str, Any]:
    """Returns the arguments of `Client.create_version` for a container; none without one."""
    if image_uri is None:
        flags = {"--port": port, "--predict-route": predict_route, "--health-route": health_route, "ARGS": arguments}
        given = next((flag for flag, value in flags.items() if value), None)
        if given is not None:
            raise InvalidInputError(f"{given} is only for --image-uri", action="add --image-uri, or remove it")
        return {}
    container: dict[str, Any] = {"image": image_uri}
    if port is not None:
        container["ports"] = [{"containerPort": port}]
    if arguments:
        container["args"] = arguments
    routes = {"predict": predict_route, "health": health_route}
    return {"container": container, "routes": {name: route for name, route in routes.items() if route}}


def _request_logging(share: float | None, *, url: str | None) -> dict[str, Any]:
    """Returns the argument of `Client.create_version` for the sample of requests that are logged; none without it."""
    if share is not None:
        folder = {} if url is None else {"uri": absolute_url(url, what="--request-log-url")}
        return {"request_logging": {"samplingPercentage": share, **folder}}
    if url is not None:
        raise InvalidInputError("--request-log-url is only for --log-requests", action="add --log-requests")
    return {}


def _batching(max_batch_size: int | None, *, max_latency_ms: float | None) -> dict[str, Any]:
    """Returns the argument of `Client.create_version` for batches; none if both are the defaults."""
    batching: dict[str, Any] = {} if max_batch_size is None else {"maxBatchSize": max_batch_size}
    if max_latency_ms is not None:
        batching["maxLatency"] = f"{max_latency_ms / 1000:.6f}s"
    return {"batching": batching} if batching else {}


def _model_of_job(client: Client, job: str, *, is_routine: bool) -> tuple[str, list[str], str | None]:
    """Returns the URL of what a job saved, the job's packages, and its module if the model may need it.

    A custom prediction routine gets the folder of the model, and all others the model's file.
    """
    found = client.job(job)
    if found["state"] != "SUCCEEDED":
        raise ModelError(
            f"job {job} has no finished model: it is {found['state']}",
            action="to deploy its model anyway, use --model-url",
        )
    choose = folder_to_deploy if is_routine else model_to_deploy
    url = choose([model["url"] for model in client.job_models(found["jobId"])], job=found)
    packages = found["trainingInput"].get("packageUris", [])
    return url, packages, found["trainingInput"].get("pythonModule") if packages and not is_routine else None


def _auto_scaling(min_servers: int | None, max_servers: int | None) -> dict[str, int] | None:
    if max_servers is None:
        if min_servers is not None:
            raise InvalidInputError("--min-servers is only for --max-servers", action="add --max-servers")
        return None
    least = 1 if min_servers is None else min_servers
    if max_servers < least:
        raise InvalidInputError("--max-servers", received=max_servers, allowed=f"--min-servers, {least}, or more")
    return {"minNodes": least, "maxNodes": max_servers}


def _next_version(client: Client, model: str) -> str:
    names = {short_name(found) for found in client.versions(model)}
    return next(f"v{number}" for number in range(1, len(names) + 2) if f"v{number}" not in names)
