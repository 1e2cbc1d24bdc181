"""The command of `lockstep.testing.container_engine.FakeContainerEngine`: a file that is run, never imported.

It supports those commands of podman (or docker) that Lockstep uses. Containers are plain processes. Each has a watcher
process, like conmon, so it outlives the command that started it. The file needs nothing but Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STATE = Path(sys.argv[1])
KIND = sys.argv[2]
NEVER = "0001-01-01T00:00:00Z"


def _config() -> dict[str, Any]:
    return json.loads((STATE / "config.json").read_text())


def _fail(text: str, code: int = 125) -> int:
    sys.stderr.write(f"Error: {text}\n")
    return code


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


def _find(name: str) -> Path | None:
    for file in sorted((STATE / "containers").glob("*.json")):
        if name in (file.stem, _read(file)["name"]):
            return file
    return None


def _read(file: Path) -> dict[str, Any]:
    """Returns a container's document, updated with the state that its watcher recorded."""
    document = json.loads(file.read_text())
    with contextlib.suppress(FileNotFoundError):
        document["state"] |= json.loads(file.with_suffix(".state").read_text())
    return document


def _write(file: Path, document: dict[str, Any]) -> None:
    partial = file.with_suffix(f".{os.getpid()}")
    partial.write_text(json.dumps(document))
    partial.replace(file)


def _note(file: Path, **state: Any) -> None:
    _write(file.with_suffix(".state"), state)


def _info() -> int:
    if not _config()["answers"]:
        return _fail("Cannot connect to the Docker daemon at unix:///var/run/docker.sock.", 1)
    podman = {"host": {"security": {"rootless": False, "selinuxEnabled": False}}, "version": {"Version": "4.3.1"}}
    docker = {"ServerVersion": "28.2.2", "SecurityOptions": ["name=seccomp"], "InitBinary": "docker-init"}
    _say(json.dumps(podman if KIND == "podman" else docker))
    return 0


def _pull(image: str) -> int:
    config = _config()
    time.sleep(config["pull_s"])
    if config["pull_error"] is not None:
        return _fail(config["pull_error"])
    if image not in config["registry"]:
        return _fail(f"initializing source docker://{image}: reading manifest: manifest unknown")
    (STATE / "images" / image.replace("/", "%")).write_text(config["registry"][image])
    return 0


def _options(arguments: list[str]) -> tuple[dict[str, list[str]], list[str]]:
    """Splits the options from the arguments behind them. Every option except ``--init`` has a value."""
    options: dict[str, list[str]] = {}
    rest = list(arguments)
    while rest and rest[0].startswith("--"):
        name, sign, value = rest.pop(0).partition("=")
        if not sign and name != "--init":
            value = rest.pop(0)
        options.setdefault(name, []).append(value)
    return options, rest


def _create(arguments: list[str]) -> int:
    options, rest = _options(arguments)
    image, *words = rest
    if not (STATE / "images" / image.replace("/", "%")).exists():
        return _fail(f"{image}: image not known")
    lines = Path(options["--env-file"][0]).read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines)
    env |= {name: os.environ[name] for name in options.get("--env", [])}
    command = [*options["--entrypoint"], *words] if "--entrypoint" in options else ["/bin/sh", *words]
    name = options["--name"][0]
    document = {
        "name": name,
        "image": image,
        "labels": dict(label.split("=", 1) for label in options.get("--label", [])),
        "env": env,
        "command": command,
        "workdir": options.get("--workdir", [str(STATE)])[0],
        "options": options,
        "state": {
            "Running": False,
            "StartedAt": NEVER,
            "ExitCode": 0,
            "Pid": 0,
            "OOMKilled": False,
            "Error": "",
            "Over": False,
        },
    }
    _write(STATE / "containers" / f"id-{name}.json", document)
    _say(f"id-{name}")
    return 0


def _watch(file: Path) -> None:
    """Runs a container's program to its end, and records its state, as conmon does for podman."""
    document = _read(file)
    try:
        process = subprocess.Popen(
            document["command"],
            env={"PATH": os.environ["PATH"], **document["env"]},
            cwd=document["workdir"],
            start_new_session=True,
        )
    except OSError as error:
        _note(file, ExitCode=127, Error=f'exec: "{document["command"][0]}": {error.strerror}', Over=True)
        return
    started = {"StartedAt": "2026-01-01T00:00:00Z"}
    _note(file, **started, Running=True, Pid=process.pid)
    code = process.wait()
    with contextlib.suppress(ProcessLookupError):  # its child processes end with it, as in a namespace
        os.killpg(process.pid, signal.SIGKILL)
    exit_code = 128 - code if code < 0 else code
    _note(file, **started, ExitCode=exit_code, OOMKilled=_config()["starves"], Over=True)


def _start(name: str) -> int:
    file = _find(name)
    if file is None:
        return _fail(f"no such container {name}")
    if os.fork() == 0:
        os.setsid()
        _watch(file)
        os._exit(0)
    while True:
        if not file.exists():
            return _fail("container was removed")
        document = _read(file)
        if document["state"]["Over"]:
            if document["state"]["StartedAt"] == NEVER:
                return _fail(document["state"]["Error"])
            return document["state"]["ExitCode"]
        time.sleep(0.02)


def _execute(arguments: list[str]) -> int:
    words = [word for word in arguments if word not in ("--interactive", "--tty")]
    terminal = words[1].partition("=")[2] if words[0] == "--env" else None
    name, *command = words[2:] if terminal is not None else words
    file = _find(name)
    if file is None or not _read(file)["state"]["Running"]:
        return _fail(f"can only create exec sessions on running containers: {name}")
    document = _read(file)
    env = {"PATH": os.environ["PATH"], **document["env"], **({} if terminal is None else {"TERM": terminal})}
    return subprocess.run(command, env=env, cwd=document["workdir"], check=False).returncode


def _port(name: str, port: str) -> int:
    file = _find(name)
    if file is None or not _read(file)["state"]["Running"]:
        return _fail(f"container {name} is not running")
    if f"127.0.0.1::{port}" not in _read(file)["options"].get("--publish", []):
        return _fail(f"failed to find published port {port}")
    _say(f"127.0.0.1:{port}")  # a process without isolation listens on the machine itself
    return 0


def _kill(arguments: list[str]) -> int:
    options, names = _options(arguments)
    number = signal.Signals[f"SIG{options['--signal'][0]}"]
    code = 0
    for name in names:
        file = _find(name)
        pid = 0 if file is None else _read(file)["state"]["Pid"]
        if not pid:
            code = _fail(f"can only kill running containers: {name}")
            continue
        with contextlib.suppress(ProcessLookupError):
            if number is signal.SIGKILL:
                os.killpg(pid, number)
            else:
                os.kill(pid, number)
    return code


def _remove(arguments: list[str]) -> int:
    _, names = _options([word for word in arguments if word != "--force"])
    if not _config()["removes"]:
        return _fail(f"cannot remove {names}: device or resource busy")
    for name in names:
        file = _find(name)
        if file is not None:
            pid = _read(file)["state"]["Pid"]
            if pid:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(pid, signal.SIGKILL)
            file.unlink(missing_ok=True)
            file.with_suffix(".state").unlink(missing_ok=True)
    return 0


def _list(arguments: list[str]) -> int:
    label = arguments[-1].removeprefix("label=")
    for file in sorted((STATE / "containers").glob("*.json")):
        if label in _read(file)["labels"]:
            _say(file.stem)
    return 0


def _inspect(arguments: list[str]) -> int:
    _, template, *names = arguments
    code = 0
    for name in names:
        file = _find(name)
        if file is None:
            code = _fail(f'no such container "{name}"')
        elif template == "{{.Id}} {{json .Config.Labels}}":
            _say(f"{file.stem} {json.dumps(_read(file)['labels'])}")
        elif template == "{{json .State}}":
            _say(json.dumps(_read(file)["state"]))
        else:
            code = _fail(f"template: {template}")  # only the templates that Lockstep uses
    return code


def _inspect_image(arguments: list[str]) -> int:
    file = STATE / "images" / arguments[-1].replace("/", "%")
    if not file.exists():
        return _fail(f"{arguments[-1]}: image not known")
    _say(file.read_text())
    return 0


def _build(arguments: list[str]) -> int:
    options, rest = _options(arguments)
    files = sorted(str(path.relative_to(rest[0])) for path in Path(rest[0]).rglob("*") if path.is_file())
    (STATE / "built.json").write_text(
        json.dumps({"files": files, "containerfile": Path(options["--file"][0]).read_text()})
    )
    (STATE / "images" / options["--tag"][0].replace("/", "%")).write_text("sha256:built")
    _say("STEP 1/1: built")
    return 0


def _push(image: str) -> int:
    if _config()["pull_error"] is not None:
        return _fail(_config()["pull_error"])
    if not (STATE / "images" / image.replace("/", "%")).exists():
        return _fail(f"{image}: image not known")
    _say(f"pushed {image}")
    return 0


def main() -> int:
    """Runs the command line, and records the call."""
    words = sys.argv[3:]
    with (STATE / "calls").open("a") as calls:
        calls.write(json.dumps(words) + "\n")
    match words:
        case ["info", *_]:
            return _info()
        case ["image", "inspect", *rest]:
            return _inspect_image(rest)
        case ["pull", *_, image]:
            return _pull(image)
        case ["create", *rest]:
            return _create(rest)
        case ["start", *_, name]:
            return _start(name)
        case ["container", "inspect", *rest]:
            return _inspect(rest)
        case ["exec", *rest]:
            return _execute(rest)
        case ["port", name, port]:
            return _port(name, port)
        case ["kill", *rest]:
            return _kill(rest)
        case ["rm", *rest]:
            return _remove(rest)
        case ["ps", *rest]:
            return _list(rest)
        case ["build", *rest]:
            return _build(rest)
        case ["push", *_, image]:
            return _push(image)
        case _:
            return _fail(f"unknown command {words}")


if __name__ == "__main__":
    sys.exit(main())
