"""The flags of `lockstep submit`: over the file, each where it belongs, refused by its own name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from lockstep.cli.app import app
from lockstep.cli.job_flags import (
    given_flags,
    merge_flags,
    read_accelerator,
)
from lockstep.errors import InvalidInputError
from lockstep.jobs.input.documents import parse_job, parse_training_input
from lockstep.jobs.input.spec import TrainingInput
from lockstep.submission.naming import flag_name
from lockstep.submission.training_inputs import FIELDS, check_supported, ignored_lines

CONTRACT = """
--config --job-dir --staging-bucket --labels --region --scale-tier --module-name --package-path --packages
--python-version --runtime-version --service-account --enable-web-access --use-chief-in-tf-config
--async --stream-logs --master-machine-type --master-accelerator --master-image-uri
--worker-count --worker-machine-type --worker-accelerator --worker-image-uri
--parameter-server-count --parameter-server-machine-type --parameter-server-accelerator --parameter-server-image-uri
"""


def command() -> Any:
    return typer.main.get_command(app).commands["submit"]  # type: ignore[attr-defined]


def parsed(*arguments: str) -> dict[str, Any]:
    """Returns the verb's parameters as the command line reads them."""
    return command().make_context("submit", ["job", *arguments]).params


def test_every_flag_of_the_contract_is_there() -> None:
    flags = {flag for parameter in command().params for flag in (*parameter.opts, *parameter.secondary_opts)}
    assert set(CONTRACT.split()) <= flags


def test_every_field_is_a_flags() -> None:
    assert set(FIELDS) <= {parameter.name for parameter in command().params}


def test_flags_win_over_the_file() -> None:
    asked = parse_training_input(
        {
            "trainingInput": {
                "scaleTier": "CUSTOM",
                "masterType": "n1-standard-4",
                "masterConfig": {"acceleratorConfig": {"count": 1, "type": "NVIDIA_TESLA_K80"}},
                "workerType": "n1-standard-4",
                "workerCount": 3,
                "args": ["--of-the-file"],
                "lockstep": {"baseOutputDirectory": "/of/the/file"},
            }
        },
        source="config.yaml",
    )
    document = merge_flags(
        asked,
        {
            "master_machine_type": "n1-standard-8",
            "master_accelerator": "count=2,type=nvidia-tesla-v100",
            "worker_count": 0,
            "worker_machine_type": None,
            "job_dir": "gs://b/j",
            "user_args": ("--epochs", "2"),
            "enable_web_access": False,
            "evaluator_count": 1,
            "evaluator_machine_type": "n1-highmem-2",
        },
    )
    read = parse_training_input({"trainingInput": document}, source="flags")
    assert (read.master_type, read.worker_count, read.worker_type) == ("n1-standard-8", 0, "n1-standard-4")
    assert read.master_config is not None
    assert read.master_config.accelerator_config is not None
    assert (read.master_config.accelerator_config.count, read.master_config.accelerator_config.type) == (
        2,
        "NVIDIA_TESLA_V100",
    )
    assert (read.evaluator_count, read.evaluator_type, read.args) == (1, "n1-highmem-2", ("--epochs", "2"))
    assert (read.job_dir, read.lockstep.base_output_directory) == ("gs://b/j", None)


def test_paths_of_the_file_are_those_of_whoever_submits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    document = merge_flags(TrainingInput(job_dir="out", package_uris=("lib.whl",)), {})
    assert (document["jobDir"], document["packageUris"]) == (f"{tmp_path}/out", [f"{tmp_path}/lib.whl"])


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        ("python_version", "2.7"),
        ("service_account", "me@project"),
    ],
)
def test_what_cannot_be_honoured_is_refused_by_its_flag(parameter: str, value: object) -> None:
    parameters = {"module_name": "train", parameter: value}
    body = {"jobId": "j", "trainingInput": merge_flags(TrainingInput(), parameters)}
    with pytest.raises(InvalidInputError) as caught:
        check_supported(parse_job(body, source="flags"), given=parameters, naming=flag_name)
    assert str(caught.value).startswith(f"{flag_name(parameter)}: ")
    assert str(caught.value).endswith("; remove it")


def test_what_is_ignored_is_named_by_its_flag_or_its_field() -> None:
    for asked, parameters, said in (
        (TrainingInput(), {"runtime_version": "2.4"}, "--runtime-version: 2.4 is ignored"),
        (TrainingInput(runtime_version="2.1"), {}, "trainingInput.runtimeVersion: 2.1 is ignored"),
    ):
        given = {"module_name": "train", **parameters}
        request = parse_job({"jobId": "j", "trainingInput": merge_flags(asked, given)}, source="flags")
        check_supported(request, given=given, naming=flag_name)
        (line,) = ignored_lines(request, given=given, naming=flag_name)
        assert line.startswith(said)


def test_what_the_file_asks_for_is_refused_by_its_field() -> None:
    body = {"jobId": "j", "trainingInput": {"pythonModule": "train", "serviceAccount": "a", "network": "n"}}
    with pytest.raises(InvalidInputError, match=r"^trainingInput\.network: .* \(and 1 more\)$"):
        check_supported(parse_job(body, source="config.yaml"), given=(), naming=flag_name)


def test_flags_that_nobody_gave_say_nothing() -> None:
    assert given_flags(parsed()) == {}
    assert given_flags(parsed("--worker-count", "0")) == {"worker_count": 0}
    asked = TrainingInput(python_module="train", args=("--of-the-file",))
    assert merge_flags(asked, parsed())["args"] == ["--of-the-file"]
    assert tuple(merge_flags(asked, parsed("--", "--epochs", "2"))["args"]) == ("--epochs", "2")


@pytest.mark.parametrize("text", ["2", "count=2", "type=A,count=2,more=1", ""])
def test_an_accelerator_that_is_not_one_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="--master-accelerator; received"):
        read_accelerator(text, flag="--master-accelerator")


@pytest.mark.parametrize(
    ("secrets", "names"),
    [
        pytest.param([], [None, None], id="none"),
        pytest.param(["k"], ["k", "k"], id="one-for-all"),
        pytest.param(["k", "l"], ["k", "l"], id="each"),
    ],
)
def test_webhooks_are_added_to_those_of_the_file(secrets: list[str], names: list[str | None]) -> None:
    asked = parse_training_input(
        {"trainingInput": {"pythonModule": "train", "lockstep": {"webhooks": [{"url": "https://file.example"}]}}},
        source="config.yaml",
    )
    flags = ["--webhook", "https://a.example/x", "--webhook", "https://b.example/x"]
    document = merge_flags(asked, parsed(*flags, *(part for name in secrets for part in ("--webhook-secret", name))))
    hooks = document["lockstep"]["webhooks"]
    assert [hook["url"] for hook in hooks] == ["https://file.example", "https://a.example/x", "https://b.example/x"]
    assert [hook.get("secret") for hook in hooks[1:]] == names


@pytest.mark.parametrize(("num_urls", "num_secrets"), [(0, 1), (1, 2), (3, 2)])
def test_secrets_of_webhooks_that_belong_to_none_are_refused(num_urls: int, num_secrets: int) -> None:
    flags = [*["--webhook", "https://a.example"] * num_urls, *["--webhook-secret", "k"] * num_secrets]
    with pytest.raises(InvalidInputError, match=f"--webhook-secret; received '{num_secrets} for {num_urls} of"):
        merge_flags(TrainingInput(), parsed(*flags))


def test_a_dry_run_shows_webhooks_without_their_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCKSTEP_HOME", str(tmp_path))
    (tmp_path / "train.py").touch()
    flags = ["--webhook", "https://a.example:8443/in-the-url?in-the-url", "--webhook-secret", "hook-key"]
    command_line = ["submit", "j", "--package-path", str(tmp_path), "--module-name", "train", *flags, "--dry-run"]
    result = CliRunner().invoke(app, command_line)
    assert (
        "webhook: https://a.example:8443/*** is notified of all states, signed with the secret hook-key"
        in result.output
    )
    assert "in-the-url" not in result.output


def test_variables_of_the_flag_reach_every_role_as_they_are() -> None:
    asked = parse_training_input(
        {"trainingInput": {"lockstep": {"env": {"worker": {"LEVEL": "file", "KEPT": "1"}}}}}, source="config.yaml"
    )
    given = ["LEVEL=debug", "LIST=a,b=c d", "EMPTY=", "JAX_COMPILATION_CACHE_DIR=gs://b/x"]
    read = parse_training_input({"trainingInput": merge_flags(asked, {"env": given})}, source="flags")
    wanted = {"LEVEL": "debug", "LIST": "a,b=c d", "EMPTY": "", "JAX_COMPILATION_CACHE_DIR": "gs://b/x"}
    for role in ("master", "worker", "ps", "evaluator"):
        assert read.lockstep.env[role] == ({"KEPT": "1", **wanted} if role == "worker" else wanted)
    assert read.lockstep.secrets == {}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["LEVEL"], "--env; received 'LEVEL'; allowed: NAME=VALUE"),
        (["=x"], "--env; received ''; allowed: names of letters"),
        (["A-B=x"], "--env; received 'A-B'; allowed: names of letters"),
        (["A=1", "A=2"], "--env; received 'A twice'; allowed: each name once"),
        *(
            ([f"{name}=x"], f"--env; received '{name}'; allowed: another name: Lockstep itself sets {name}")
            for name in ("TF_CONFIG", "CLUSTER_SPEC", "AIP_MODEL_DIR", "RANK", "JAX_PROCESS_ID", "LOCKSTEP_TOKEN")
        ),
    ],
)
def test_variables_that_cannot_be_given_are_refused_by_name(given: list[str], message: str) -> None:
    with pytest.raises(InvalidInputError, match=re.escape(message)):
        merge_flags(TrainingInput(), {"env": given})
