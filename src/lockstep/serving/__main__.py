"""The prediction server's process: ``python -m lockstep.serving --model-url URL --ready-file PATH --token-file PATH``.

It binds a loopback port, loads and compiles the model, writes the ready file and serves until SIGTERM. An error before
that is reported in one line on standard error, and by the error's exit code.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvicorn

from lockstep.errors import InvalidInputError, LockstepError, MissingInputError, PortInUseError
from lockstep.serving.app import AppOptions, make_app
from lockstep.serving.batcher import BatchPolicy
from lockstep.serving.connections import TimedProtocol
from lockstep.serving.model import LoadedModel
from lockstep.serving.package_code import PackageCode

HOST: Final = "127.0.0.1"
BACKLOG: Final = 512
SHUTDOWN_S: Final = 5


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the server. Returns the exit code of the process.

    Args:
        arguments: the command-line arguments without the program's name; the process's own by default.
    """
    options = _parse(arguments)
    try:
        _serve(options)
    except LockstepError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lockstep.serving", description="Serve one Keras model.")
    policy = BatchPolicy()
    parser.add_argument("--model-url", required=True, help="bucket URL of a .keras file")
    parser.add_argument("--display-url", help="URL of the model in error messages")
    parser.add_argument("--package-url", action="append", default=[], help="bucket URL of a package with its classes")
    parser.add_argument("--program", help="the module that the model's job ran")
    parser.add_argument("--code-refused", metavar="WHY", help="do not run code of packages, for this reason")
    parser.add_argument("--ready-file", required=True, type=Path, help="written when the server accepts requests")
    parser.add_argument("--token-file", required=True, type=Path, help="holds the bearer token of /predict")
    parser.add_argument("--port", type=int, default=0, help="loopback port; 0 takes a free one")
    parser.add_argument("--max-batch-size", type=int, default=policy.max_batch_size, help="maximum instances per batch")
    parser.add_argument(
        "--max-latency-ms", type=float, default=policy.max_latency_s * 1000, help="how long a request waits for others"
    )
    parser.add_argument("--max-waiting", type=int, default=policy.max_waiting, help="requests that may wait")
    return parser.parse_args(arguments)


def _serve(options: argparse.Namespace) -> None:
    policy = _policy(options)
    token = _read_token(options.token_file)
    os.chdir(options.ready_file.parent)  # a server outlives its starter, and must not keep its folder in use
    with _bind(options.port) as listener:
        code = PackageCode(
            packages=options.package_url,
            program=options.program,
            refusal=options.code_refused,
            folder=options.ready_file.parent,
        )
        model = LoadedModel.load(
            options.model_url,
            max_batch_size=policy.max_batch_size,
            folder=options.ready_file.parent,
            display_url=options.display_url,
            prepare=code.register_classes,
        )
        model.warm_up()
        url = f"http://{HOST}:{listener.getsockname()[1]}"

        def on_ready() -> None:
            # The port must accept connections before the ready file exists, so that its readers can connect.
            listener.listen(BACKLOG)
            document = {
                "url": url,
                "pid": os.getpid(),
                "model_url": options.display_url or options.model_url,
                "input": [spec.to_json() for spec in model.inputs],
                "output": list(model.output_names),
            }
            write_atomically(options.ready_file, text=json.dumps(document))

        app = make_app(model, options=AppOptions(token=token, policy=policy, on_ready=on_ready))
        config = uvicorn.Config(
            app,
            http=TimedProtocol,
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_S,
            server_header=False,
        )
        uvicorn.Server(config).run(sockets=[listener])


def _policy(options: argparse.Namespace) -> BatchPolicy:
    for flag, value, least in (
        ("--max-batch-size", options.max_batch_size, 1),
        ("--max-latency-ms", options.max_latency_ms, 0),
        ("--max-waiting", options.max_waiting, 1),
    ):
        if value < least:
            raise InvalidInputError(flag, received=value, allowed=f"{least} or more")
    return BatchPolicy(
        max_batch_size=options.max_batch_size,
        max_latency_s=options.max_latency_ms / 1000,
        max_waiting=options.max_waiting,
    )


def _read_token(path: Path) -> str:
    try:
        token = path.read_text("utf-8").strip()
    except OSError as error:
        raise MissingInputError(f"cannot read the token file {path}: {error.strerror}") from None
    if not token:
        raise InvalidInputError(f"the token file {path} is empty")
    return token


def _bind(port: int) -> socket.socket:
    if not 0 <= port < 2**16:
        raise InvalidInputError("--port", received=port, allowed="0 to 65535")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortInUseError(
                f"cannot listen on {HOST}:{port}: {error.strerror}", action="name another --port, or 0 for a free one"
            ) from None
        raise
    return listener


def write_atomically(path: Path, *, text: str) -> None:
    """Writes a small text file atomically, readable only by its owner."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


if __name__ == "__main__":
    sys.exit(main())
