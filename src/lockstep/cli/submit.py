"""``lockstep submit``, with the flags of ``gcloud ai-platform jobs submit training``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, VariablesOption, absolute_url, connect
from lockstep.cli.dry_run import print_dry_run
from lockstep.cli.job_flags import check_supported, ignored_lines, merge_flags, read_pairs
from lockstep.cli.job_models import model_urls
from lockstep.cli.package import check_installed, check_module, stage_folder, stage_package
from lockstep.cli.python_environment import describe, requirements_path, source_of
from lockstep.cli.stream import follow
from lockstep.cli.summary import print_summary
from lockstep.client import Client
from lockstep.errors import ConfigError, InvalidInputError, JobFailedError, UnavailableError
from lockstep.home import Home
from lockstep.jobs.input.documents import JobConfig, JobRequest, parse_config, parse_job
from lockstep.jobs.parsing.yaml_documents import read_yaml

Machine = Annotated[str | None, typer.Option(help="Machine type of each of these replicas.")]
Accelerator = Annotated[str | None, typer.Option(help="Accelerators of each of these replicas: count=N,type=T.")]
Count = Annotated[int | None, typer.Option(min=0, help="Number of these replicas.")]
Image = Annotated[str | None, typer.Option(help="Container image of these replicas.")]


def submit(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name: letters, digits and underscores.")],
    user_args: Annotated[
        list[str] | None, typer.Argument(metavar="[-- USER_ARGS...]", help="Arguments of the program.")
    ] = None,
    package_path: Annotated[
        Path | None,
        typer.Option(
            help="Folder with the program's code. Files that .gitignore or .lockstepignore excludes are not packed."
        ),
    ] = None,
    module_name: Annotated[str | None, typer.Option(help="The module to run, such as 'train'.")] = None,
    packages: Annotated[
        str | None, typer.Option(help="Further packages, .tar.gz or .whl: files or bucket URLs, separated by commas.")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="YAML file with trainingInput, or workerPoolSpecs.")] = None,
    scale_tier: Annotated[str | None, typer.Option(help="BASIC, STANDARD_1, BASIC_GPU, CUSTOM, ...")] = None,
    master_machine_type: Annotated[str | None, typer.Option(help="Machine type of the master.")] = None,
    master_accelerator: Annotated[str | None, typer.Option(help="Accelerators of the master: count=N,type=T.")] = None,
    master_image_uri: Annotated[
        str | None, typer.Option(help="Container image of every replica that names no other.")
    ] = None,
    worker_count: Count = None,
    worker_machine_type: Machine = None,
    worker_accelerator: Accelerator = None,
    worker_image_uri: Image = None,
    parameter_server_count: Count = None,
    parameter_server_machine_type: Machine = None,
    parameter_server_accelerator: Accelerator = None,
    parameter_server_image_uri: Image = None,
    evaluator_count: Count = None,
    evaluator_machine_type: Machine = None,
    evaluator_accelerator: Accelerator = None,
    evaluator_image_uri: Image = None,
    job_dir: Annotated[str | None, typer.Option(help="Bucket URL for the job's outputs.")] = None,
    staging_bucket: Annotated[str | None, typer.Option(help="Bucket for the packed code.")] = None,
    requirements: Annotated[
        Path | None, typer.Option(help="File in --package-path that lists the Python packages that the program needs.")
    ] = None,
    no_environment: Annotated[
        bool, typer.Option("--no-environment", help="Build no Python environment, even if the folder lists packages.")
    ] = False,
    env: VariablesOption = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="ENV=NAME", help="A secret of the project, in an environment variable; may be repeated."),
    ] = None,
    webhook: Annotated[
        list[str] | None,
        typer.Option(metavar="URL", help="A URL to notify of the job's states; may be repeated. See docs/webhooks.md."),
    ] = None,
    webhook_secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The project's secret that signs the messages: one for all webhooks, or one for each.",
        ),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="key=value,key=value")] = None,
    region: Annotated[str | None, typer.Option(help="Region whose prices apply.")] = None,
    python_version: Annotated[str | None, typer.Option(help="Python's version, such as 3.11.")] = None,
    runtime_version: Annotated[str | None, typer.Option(help="AI Platform's runtime version; ignored.")] = None,
    service_account: Annotated[str | None, typer.Option(help="Account to run as.")] = None,
    enable_web_access: Annotated[
        bool, typer.Option("--enable-web-access", help="Let `lockstep exec` open shells in it.")
    ] = False,
    use_chief_in_tf_config: Annotated[
        bool, typer.Option("--use-chief-in-tf-config", help="Call the first role chief, not master.")
    ] = False,
    stream_logs: Annotated[
        bool, typer.Option("--stream-logs/--async", help="Print the log until the job ends, or return at once.")
    ] = True,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check and print the job, and submit nothing.")] = False,
    project: ProjectOption = DEFAULT_PROJECT,
) -> None:
    """Submit a training job, and print its log until it ends. Ctrl-C ends the printing, but not the job."""
    asked = _read_config(config, job=job)
    flags = {**context.params, "requirements": requirements_path(requirements, folder=package_path)}
    body: dict[str, Any] = {
        "jobId": job,
        "trainingInput": merge_flags(asked.training_input, flags),
        "labels": {**asked.labels, **({} if labels is None else read_pairs(labels, flag="--labels"))},
    }
    request = parse_job(body, source="flags" if config is None else str(config))
    check_supported(request, flags)
    for line in ignored_lines(request, flags):
        ERRORS.print(f"note: {line}", style="yellow")
    asked_for = request.training_input
    master = asked_for.master_config
    environment = asked_for.lockstep.environment
    image = None if master is None else master.image_uri  # the image of all roles that name no other one
    source = source_of(package_path, asked=environment) if image is None else None
    client = _connect(project, required=not dry_run)
    try:
        staging = absolute_url(staging_bucket or _service_bucket(client), what="--staging-bucket")
        urls = _stage(request, package_path, (packages or "").split(","), staging=staging, upload=not dry_run)
        body["trainingInput"]["packageUris"] = [*urls, *asked_for.package_uris]
        if dry_run:
            python = describe(source, asked=environment) if image is None else "the image's own"
            print_dry_run(body, project=project, client=client, python=python)
        elif client is not None:
            submit_body(client, body, stream_logs=stream_logs)
    finally:
        if client is not None:
            client.close()


def _connect(project: str, *, required: bool) -> Client | None:
    """Returns a client of the service; None if no service runs and none is required."""
    try:
        return connect(project)
    except UnavailableError:
        if required:
            raise
        return None


def _service_bucket(client: Client | None) -> str:
    """Returns the bucket to stage code in: the service's own, or this home's if there is no service."""
    if client is None:
        return str(Home.from_env().bucket)
    return check_reachable(client.whoami()["bucket"], is_on_this_machine=client.is_on_this_machine)


def check_reachable(bucket: str, *, is_on_this_machine: bool) -> str:
    """Returns the service's bucket, if this machine can upload code to it.

    Args:
        bucket: the bucket's URL or folder.
        is_on_this_machine: whether the service runs on this machine.

    Raises:
        InvalidInputError: the bucket is a folder of another machine.
    """
    if not is_on_this_machine and "://" not in bucket:
        raise InvalidInputError(
            f"the service's bucket {bucket} is a folder on the service's machine",
            action="give a bucket that both machines can access with --staging-bucket",
        )
    return bucket


def submit_body(client: Client, body: dict[str, Any], *, stream_logs: bool) -> None:
    """Submits a job, and prints its log until it ends.

    Args:
        client: a client of the service.
        body: the job, in the contract's JSON form.
        stream_logs: whether to print the log; if not, only the job's name is printed.

    Raises:
        JobFailedError: the job did not succeed.
    """
    job = body["jobId"]
    created = client.create_job(body)
    simulated = " on simulated machines" if created["lockstep"]["simulated"] else ""
    ERRORS.print(f"job {job} is queued{simulated}; `lockstep logs -f {job}` follows it", style="dim")
    if not stream_logs:
        OUTPUT.print(job)
        return
    try:
        ended = follow(client, job)
    except KeyboardInterrupt:
        ERRORS.print(f"\njob {job} continues; `lockstep logs -f {job}` follows it")
        raise
    print_summary(ended, client.job_events(job), models=model_urls(client, ended))
    if ended["state"] != "SUCCEEDED":
        raise JobFailedError(f"job {job} ended in state {ended['state']}", action=f"see `lockstep describe {job}`")


def _stage(
    request: JobRequest, folder: Path | None, packages: Sequence[str], *, staging: str, upload: bool
) -> list[str]:
    """Stages the program's folder and packages, and returns their URLs, the folder's first."""
    module = request.training_input.python_module
    urls: list[str] = []
    if folder is not None:
        if module is not None:
            check_module(folder, module=module)
        urls.append(
            stage_folder(folder, staging=staging, upload=upload, say=lambda text: ERRORS.print(text, style="dim"))
        )
    urls += [stage_package(name.strip(), staging=staging, upload=upload) for name in packages if name.strip()]
    if not urls and module is not None and not request.training_input.package_uris:
        check_installed(module)
    return urls


def _read_config(path: Path | None, *, job: str) -> JobConfig:
    if path is None:
        return JobConfig()
    asked = parse_config(read_yaml(path, flag="--config"), source=str(path))
    if asked.job_id not in (None, job):
        raise ConfigError(
            f"{path}: jobId", received=asked.job_id, allowed=f"{job}, as on the command line, or no jobId"
        )
    return asked
