"""``lockstep submit``: the flags of ``gcloud ai-platform jobs submit training``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, absolute_url, connect
from lockstep.cli.package import check_installed, check_module, upload_folder
from lockstep.cli.stream import follow
from lockstep.cli.summary import print_summary
from lockstep.client import Client
from lockstep.errors import ConfigError, InvalidInputError, JobFailedError
from lockstep.jobs import JobConfig, parse_config, parse_job
from lockstep.jobs.yaml_documents import read_yaml


def submit(
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name: letters, digits and underscores.")],
    user_args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- USER_ARGS...]", help="Arguments of the program.")
    ] = None,
    package_path: Annotated[Path | None, typer.Option(help="Folder with the program's code.")] = None,
    module_name: Annotated[str | None, typer.Option(help="The module to run, such as 'train'.")] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with trainingInput.")] = None,
    scale_tier: Annotated[str | None, typer.Option(help="BASIC, STANDARD_1, BASIC_GPU, CUSTOM, ...")] = None,
    master_machine_type: Annotated[str | None, typer.Option(help="Machine type of the master.")] = None,
    master_accelerator: Annotated[str | None, typer.Option(help="count=N,type=T of the master.")] = None,
    worker_count: Annotated[int | None, typer.Option(min=0, help="How many workers.")] = None,
    worker_machine_type: Annotated[str | None, typer.Option(help="Machine type of the workers.")] = None,
    worker_accelerator: Annotated[str | None, typer.Option(help="count=N,type=T of a worker.")] = None,
    parameter_server_count: Annotated[int | None, typer.Option(min=0, help="How many parameter servers.")] = None,
    parameter_server_machine_type: Annotated[str | None, typer.Option(help="Their machine type.")] = None,
    parameter_server_accelerator: Annotated[str | None, typer.Option(help="count=N,type=T of each.")] = None,
    job_dir: Annotated[str | None, typer.Option(help="Bucket URL for the job's outputs.")] = None,
    staging_bucket: Annotated[str | None, typer.Option(help="Bucket for the packed code.")] = None,
    labels: Annotated[str | None, typer.Option(help="key=value,key=value")] = None,
    region: Annotated[str | None, typer.Option(help="Region, for its prices.")] = None,
    use_chief_in_tf_config: Annotated[
        bool, typer.Option("--use-chief-in-tf-config", help="Call the first role chief, not master.")
    ] = False,
    stream_logs: Annotated[
        bool, typer.Option("--stream-logs/--async", help="Print the log until the job ends, or return at once.")
    ] = True,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Submit a training job. Its log is printed until it ends; Ctrl-C leaves the job running."""
    asked = _read_config(config)
    if asked.job_id not in (None, job):
        raise ConfigError(f"{config}: jobId", received=asked.job_id, allowed=f"{job}, as the command says, or nothing")
    document: dict[str, Any] = asked.training_input.to_json()
    flags: dict[str, Any] = {
        "scaleTier": scale_tier,
        "masterType": master_machine_type,
        "workerType": worker_machine_type,
        "parameterServerType": parameter_server_machine_type,
        "workerCount": worker_count,
        "parameterServerCount": parameter_server_count,
        "jobDir": job_dir,
        "region": region,
        "pythonModule": module_name,
        "useChiefInTfConfig": use_chief_in_tf_config or None,
        "args": user_args or None,
    }
    document.update({key: value for key, value in flags.items() if value is not None})
    for role, flag, value in (
        ("master", "--master-accelerator", master_accelerator),
        ("worker", "--worker-accelerator", worker_accelerator),
        ("parameterServer", "--parameter-server-accelerator", parameter_server_accelerator),
    ):
        if value is not None:
            role_config = {**document.get(f"{role}Config", {}), "acceleratorConfig": _accelerator(flag, value)}
            document[f"{role}Config"] = role_config
    if "jobDir" in document:
        document["jobDir"] = absolute_url(document["jobDir"], what="jobDir" if job_dir is None else "--job-dir")
    document["packageUris"] = [absolute_url(url, what="packageUris") for url in document.get("packageUris", [])]
    body = {"jobId": job, "trainingInput": document, "labels": {**asked.labels, **_labels(labels)}}
    request = parse_job(body, source="flags" if config is None else str(config))
    with connect(project) as client:
        module = request.training_input.python_module or ""
        if package_path is not None:
            url = _upload(client, package_path, module=module, staging=staging_bucket)
            document["packageUris"] = [*document["packageUris"], url]
        elif not document["packageUris"]:
            check_installed(module)
        created = client.create_job(body)
        simulated = " on simulated machines" if created["lockstep"]["simulated"] else ""
        ERRORS.print(f"job {job} is queued{simulated}; `lockstep logs -f {job}` follows it", style="dim")
        if not stream_logs:
            OUTPUT.print(job)
            return
        _follow_to_end(client, job)


def _follow_to_end(client: Client, job: str) -> None:
    try:
        ended = follow(client, job)
    except KeyboardInterrupt:
        ERRORS.print(f"\njob {job} goes on without this stream; `lockstep logs -f {job}` follows it")
        raise
    print_summary(ended, client.job_events(job))
    if ended["state"] != "SUCCEEDED":
        raise JobFailedError(f"job {job} ended {ended['state']}", action=f"see `lockstep describe {job}`")


def _upload(client: Client, folder: Path, *, module: str, staging: str | None) -> str:
    """Puts the program's folder into the staging bucket, the service's own by default; returns its URL."""
    check_module(folder, module=module)
    bucket = client.service()["bucket"] if staging is None else staging
    return upload_folder(folder, staging=absolute_url(bucket, what="--staging-bucket"))


def _read_config(path: Path | None) -> JobConfig:
    if path is None:
        return parse_config({}, source="flags")
    return parse_config(read_yaml(path, flag="--config"), source=str(path))


def _pairs(flag: str, text: str) -> dict[str, str]:
    pairs = [part.partition("=") for part in text.split(",") if part]
    if not pairs or not all(key and sign for key, sign, _ in pairs):
        raise InvalidInputError(flag, received=text, allowed="key=value,key=value")
    return {key.strip(): value.strip() for key, _, value in pairs}


def _accelerator(flag: str, text: str) -> dict[str, str]:
    pairs = _pairs(flag, text)
    if not {"type"} <= set(pairs) <= {"count", "type"}:
        raise InvalidInputError(flag, received=text, allowed="count=N,type=T")
    return {"count": pairs.get("count", "1"), "type": pairs["type"]}


def _labels(text: str | None) -> dict[str, str]:
    return {} if text is None else _pairs("--labels", text)
