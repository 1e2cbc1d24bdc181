"""``lockstep submit``, with the flags of ``gcloud ai-platform jobs submit training``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lockstep.cli.answers import Answer, Format, answers
from lockstep.cli.completing import complete_secret
from lockstep.cli.console import DEFAULT_PROJECT, ERRORS, OUTPUT, ProjectOption, VariablesOption, absolute_url, connect
from lockstep.cli.dry_run import dry_run_answer
from lockstep.cli.job_flags import given_flags, merge_flags, read_pairs
from lockstep.cli.job_models import model_urls
from lockstep.cli.next_commands import next_command
from lockstep.cli.stream import Printing, follow
from lockstep.cli.summary import print_summary
from lockstep.errors import ConfigError, JobCancelledError, JobFailedError, UnavailableError
from lockstep.jobs.input.documents import JobConfig, parse_config, parse_job
from lockstep.jobs.parsing.yaml_documents import read_yaml
from lockstep.submission.naming import flag_name
from lockstep.submission.python_environments import describe, requirements_path, source_of
from lockstep.submission.staging import bucket_for_code, stage_code
from lockstep.submission.training_inputs import check_supported, ignored_lines

if TYPE_CHECKING:
    from lockstep.client import Client


@answers("JobForm", "PreviewForm", hints=True)
def submit(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="JOB", help="The job's name: letters, digits and underscores.")],
    user_args: Annotated[
        list[str] | None, typer.Argument(metavar="-- USER_ARGS", help="Arguments of the program.")
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
    scale_tier: Annotated[
        str | None, typer.Option(help="A named set of machines: BASIC, STANDARD_1, BASIC_GPU, CUSTOM, ...")
    ] = None,
    master_machine_type: Annotated[str | None, typer.Option(help="Machine type of the master.")] = None,
    master_accelerator: Annotated[str | None, typer.Option(help="Accelerators of the master: count=N,type=T.")] = None,
    master_image_uri: Annotated[
        str | None, typer.Option(help="Container image of every replica that names no other.")
    ] = None,
    worker_count: Annotated[int | None, typer.Option(min=0, help="Number of workers.")] = None,
    worker_machine_type: Annotated[str | None, typer.Option(help="Machine type of each worker.")] = None,
    worker_accelerator: Annotated[str | None, typer.Option(help="Accelerators of each worker: count=N,type=T.")] = None,
    worker_image_uri: Annotated[str | None, typer.Option(help="Container image of the workers.")] = None,
    parameter_server_count: Annotated[int | None, typer.Option(min=0, help="Number of parameter servers.")] = None,
    parameter_server_machine_type: Annotated[
        str | None, typer.Option(help="Machine type of each parameter server.")
    ] = None,
    parameter_server_accelerator: Annotated[
        str | None, typer.Option(help="Accelerators of each parameter server: count=N,type=T.")
    ] = None,
    parameter_server_image_uri: Annotated[
        str | None, typer.Option(help="Container image of the parameter servers.")
    ] = None,
    evaluator_count: Annotated[int | None, typer.Option(min=0, help="Number of evaluators.")] = None,
    evaluator_machine_type: Annotated[str | None, typer.Option(help="Machine type of each evaluator.")] = None,
    evaluator_accelerator: Annotated[
        str | None, typer.Option(help="Accelerators of each evaluator: count=N,type=T.")
    ] = None,
    evaluator_image_uri: Annotated[str | None, typer.Option(help="Container image of the evaluators.")] = None,
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
            autocompletion=complete_secret,
        ),
    ] = None,
    labels: Annotated[str | None, typer.Option(help="Labels of the job: key=value,key=value.")] = None,
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
    *,
    output_format: Format = Format.TABLE,
) -> Answer:
    """Submit a training job, and print its log until it ends. Ctrl-C ends the printing, but not the job.

    With --json, no log is printed. The job is printed once it has ended, or at once with --async.
    """
    asked = _read_config(config, job=job)
    flags = {**context.params, "requirements": requirements_path(requirements, folder=package_path, naming=flag_name)}
    body: dict[str, Any] = {
        "jobId": job,
        "trainingInput": merge_flags(asked.training_input, flags),
        "labels": {**asked.labels, **({} if labels is None else read_pairs(labels, flag="--labels"))},
    }
    request = parse_job(body, source="flags" if config is None else str(config))
    given = given_flags(flags)
    check_supported(request, given=given, naming=flag_name)
    for line in ignored_lines(request, given=given, naming=flag_name):
        ERRORS.print(f"note: {line}", style="yellow")
    asked_for = request.training_input
    master = asked_for.master_config
    environment = asked_for.lockstep.environment
    image = None if master is None else master.image_uri  # the image of all roles that name no other one
    source = source_of(package_path, asked=environment, naming=flag_name) if image is None else None
    client = _connect(project, required=not dry_run)
    try:
        bucket = staging_bucket or bucket_for_code(client, naming=flag_name)
        urls = stage_code(
            asked_for,
            folder=package_path,
            packages=(packages or "").split(","),
            staging=absolute_url(bucket, what="--staging-bucket"),
            upload=not dry_run,
            naming=flag_name,
            say=lambda text: ERRORS.print(text, style="dim"),
        )
        body["trainingInput"]["packageUris"] = [*urls, *asked_for.package_uris]
        if dry_run:
            python = describe(source, asked=environment) if image is None else "the image's own"
            return dry_run_answer(body, project=project, client=client, python=python)
        assert client is not None, "one is required"
        return submit_body(client, body, stream_logs=stream_logs, output_format=output_format)
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


def submit_body(client: Client, body: dict[str, Any], *, stream_logs: bool, output_format: Format) -> Answer:
    """Submits a job, prints its log until it ends, and returns the answer, with an error if it did not succeed.

    Args:
        client: a client of the service.
        body: the job, in the contract's JSON form.
        stream_logs: whether to print the log; if not, only the job's name is printed.
        output_format: the format of the answer; if it is JSON, the log is not printed.
    """
    job = body["jobId"]
    created = client.create_job(body)
    simulated = " on simulated machines" if created["lockstep"]["simulated"] else ""
    ERRORS.print(f"job {job} is queued{simulated}", style="dim")
    if "hyperparameters" in body.get("trainingInput", {}):
        ERRORS.print(f"each trial has a log of its own: lockstep trials {job}, lockstep logs -f {job}.1", style="dim")
    if not stream_logs:
        return Answer(show=lambda: OUTPUT.print(job), document=created, hint=next_command(created))
    is_json = output_format is Format.JSON
    try:
        ended = follow(client, job, prints=Printing.NOTHING if is_json else Printing.TEXT)
    except KeyboardInterrupt:
        ERRORS.print(f"\njob {job} continues; `lockstep logs -f {job}` follows it")
        raise
    error = None
    if ended["state"] != "SUCCEEDED":
        kind = JobCancelledError if ended["state"] == "CANCELLED" else JobFailedError
        error = kind(f"job {job} ended in state {ended['state']}", action=f"see `lockstep describe {job}`")
    if is_json:
        return Answer(show=lambda: None, document=ended, error=error)
    events, models = client.job_events(job), model_urls(client, ended)
    return Answer(
        show=lambda: print_summary(ended, events, models=models),
        hint=next_command(ended, models=models),
        error=error,
    )


def _read_config(path: Path | None, *, job: str) -> JobConfig:
    if path is None:
        return JobConfig()
    asked = parse_config(read_yaml(path, flag="--config"), source=str(path))
    if asked.job_id not in (None, job):
        raise ConfigError(
            f"{path}: jobId", received=asked.job_id, allowed=f"{job}, as on the command line, or no jobId"
        )
    return asked
