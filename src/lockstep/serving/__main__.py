"""The prediction server's process: ``python -m lockstep.serving --model PATH``.

It listens at the address that ``TF_CONFIG`` gives it, loads and compiles the model, and serves until SIGTERM. Its first
heartbeat says that it accepts requests. An error before that is reported in one line on standard error, and by the
error's exit code.
"""

from __future__ import annotations

import argparse
import errno
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import uvicorn

from lockstep.errors import InvalidInputError, LockstepError, MissingInputError, PortInUseError
from lockstep.serving import SERVER_TOKEN
from lockstep.serving.answering import ContainerServer, Served
from lockstep.serving.app import AppOptions, PredictApp
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.connections import LimitedProtocol
from lockstep.serving.opening import open_model
from lockstep.serving.routine import Routine
from lockstep.topology import Topology

HOST: Final = "127.0.0.1"
BACKLOG: Final = 512
SHUTDOWN_S: Final = 5
"""How long open requests are answered after SIGTERM, in seconds."""
SWITCH_S: Final = 0.0005
"""After how many seconds a thread gives others a turn. With Python's 5 ms, the thread of the model would wait for
them while requests are read."""


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
    parser = argparse.ArgumentParser(prog="python -m lockstep.serving", description="Serve one model.")
    policy = BatchPolicy()
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--model", type=Path, help="path of a .keras or .stablehlo file, or a folder")
    what.add_argument("--container", help="URL of a server in a container, to which requests are forwarded")
    parser.add_argument("--predict-route", default="/", help="path of the container's server for predictions")
    parser.add_argument("--health-route", default="/", help="path of the container's server for its health")
    parser.add_argument("--prediction-class", help="custom prediction routine, which gets the folder of --model")
    parser.add_argument("--display-url", help="URL of the model in error messages")
    parser.add_argument("--has-code", action="store_true", help="packages with the model's classes can be imported")
    parser.add_argument("--program", help="the module that the model's job ran")
    parser.add_argument("--port", type=int, default=0, help="loopback port if TF_CONFIG gives none; 0: a free one")
    parser.add_argument("--max-batch-size", type=int, default=policy.max_batch_size, help="maximum instances per batch")
    parser.add_argument(
        "--max-latency-ms", type=float, default=policy.max_latency_s * 1000, help="how long a request waits for others"
    )
    parser.add_argument("--max-waiting", type=int, default=policy.max_waiting, help="requests that may wait")
    return parser.parse_args(arguments)


def _serve(options: argparse.Namespace) -> None:
    policy = _policy(options)
    token = os.environ.pop(SERVER_TOKEN, "")
    if not token:
        raise MissingInputError(f"{SERVER_TOKEN} is not set", action="set it to the token that clients must send")
    sys.setswitchinterval(SWITCH_S)
    with _bind(options.port) as listener:
        served = _open(options, policy=policy)
        # The port must accept connections before the first heartbeat, which has others connect.
        app_options = AppOptions(token=token, policy=policy, on_ready=lambda: listener.listen(BACKLOG))
        config = uvicorn.Config(
            PredictApp(served, options=app_options),
            http=LimitedProtocol,
            log_level="warning",
            access_log=False,
            backlog=BACKLOG,
            timeout_graceful_shutdown=SHUTDOWN_S,
            server_header=False,
        )
        host, port = listener.getsockname()[:2]
        sys.stdout.write(f"serving {options.container or options.display_url or options.model} at {host}:{port}\n")
        uvicorn.Server(config).run(sockets=[listener])


def _open(options: argparse.Namespace, *, policy: BatchPolicy) -> Served:
    if options.container is not None:
        return ContainerServer(
            url=options.container, predict_route=options.predict_route, health_route=options.health_route
        )
    if options.prediction_class is not None:
        return Routine.load(options.prediction_class, folder=options.model.absolute())
    # Imported here because a routine may not need JAX.
    from lockstep.serving.compilations import Compilations

    with Compilations() as compilations:
        model = open_model(
            options.model,
            max_batch_size=policy.max_batch_size,
            display_url=options.display_url,
            has_code=options.has_code,
            program=options.program,
        )
        model.warm_up()
    sys.stdout.write(f"{compilations}\n")
    return model


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


def _bind(port: int) -> socket.socket:
    """Binds the address of this process in the topology, or a loopback port if it has none."""
    if not 0 <= port < 2**16:
        raise InvalidInputError("--port", received=port, allowed="0 to 65535")
    addresses = Topology.from_env().synchronous_addresses
    host, _, text = addresses[0].rpartition(":") if addresses else (HOST, "", str(port))
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, int(text)))
    except OSError as error:
        listener.close()
        if error.errno in (errno.EADDRINUSE, errno.EACCES):
            raise PortInUseError(
                f"cannot listen on {host}:{text}: {error.strerror}", action="name another --port, or 0 for a free one"
            ) from None
        raise
    return listener


if __name__ == "__main__":
    sys.exit(main())
