"""Measures Lockstep's prediction server beside others: the same models and requests, in turn, on loopback.

``python benchmarks/serving.py [--rounds N] [--seconds S] [--models a,b] [--servers a,b] [--connections 1,8]``. Each
rival gets an environment of its own in the folder, once: 6 GB of downloads and disk in all, most of it PyTorch. With
``UV_TORCH_BACKEND=cpu``, uv takes the smaller PyTorch for processors. The load comes from wrk (Debian: ``apt-get
install wrk``). Before a server is measured, its predictions are compared with those of ``model.predict``. Prints tables
as Markdown: medians over the rounds. Takes two hours on two cores, which should do nothing else.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Final

import httpx
from harness import columns
from harness.environments import InstallationError
from harness.machine import pss_mib
from harness.options import count, counts
from harness.program import Program
from harness.results import Result, result_of
from harness.sides import environment_of
from harness.tables import show
from harness.turns import turns
from serving.cases import CASES, Case
from serving.load import send_load
from serving.servers import NAMES, Endpoint, Server, StartError, await_answer, make_server, threads_of

TOLERANCE: Final = 1e-4
WARM_UP_S: Final = 1
ANSWER_S: Final = 60.0
NUM_CHECKS: Final = 3
"""How often each sample is sent before a server is measured. All samples are sent at the same time."""
MODELS_SOURCE: Final = Path(__file__).resolve().parent / "serving" / "models.py"


Results = dict[tuple[str, int, str], list[dict[str, float | None]]]
"""The figures of all rounds, by model, connections and server."""


def write_models(folder: Path) -> None:
    """Writes the models where they are not yet, or older than the program that makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [Case(name=name, folder=folder).samples_path for name in CASES]
    if all(path.exists() and path.stat().st_mtime > MODELS_SOURCE.stat().st_mtime for path in written):
        return
    environment = environment_of({"JAX_PLATFORMS": "cpu"})
    subprocess.run([sys.executable, "-m", "serving.models", str(folder)], env=environment, check=True, timeout=900)


def check_predictions(endpoint: Endpoint, case: Case, *, server: str) -> None:
    """Ends where a server predicts something else than the model."""
    instances, expected = case.samples()
    with (
        httpx.Client(timeout=ANSWER_S, trust_env=False) as client,
        ThreadPoolExecutor(max_workers=len(instances)) as pool,
    ):
        for _ in range(NUM_CHECKS):
            found = list(pool.map(lambda instance: endpoint.predict(client, instance), instances))
            for number, (one, wanted) in enumerate(zip(found, expected, strict=True)):
                differences = [abs(left - right) for left, right in zip(one, wanted, strict=True)]
                if not max(differences) <= TOLERANCE:
                    sys.exit(f"{server}, {case.name}: sample {number} is {one}, but model.predict says {wanted}")


def measure(
    server: Server, case: Case, connections: Sequence[int], *, seconds: int, wrk: str, log: Path
) -> Iterator[tuple[int, dict[str, float | None]]]:
    """Starts a server, and yields each number of connections with its figures.

    Raises:
        StartError: the server does not start, or does not answer any more.
    """
    with server.serve(case, log) as endpoint:
        check_predictions(endpoint, case, server=server.title)
        for num_connections in connections:
            load, memory_mib = dict[str, float | None](), 0.0
            for duration_s in (WARM_UP_S, seconds):  # the first one does not count
                load = send_load(
                    endpoint.url,
                    wrk=wrk,
                    body=case.body_path,
                    authorization=endpoint.authorization,
                    num_connections=num_connections,
                    seconds=duration_s,
                )
                memory_mib = pss_mib(process.pid for process in endpoint.processes())
                await_answer(endpoint, case, timeout_s=ANSWER_S)
            yield num_connections, {**load, "memory_mib": memory_mib}


def results_of(found: Results, servers: Mapping[str, Server]) -> list[Result]:
    """Returns the results in the order of the models and of their connections."""
    return [
        result_of(
            found[model, num_connections, name],
            value="requests_per_s",
            case=f"{CASES[model]}; connections: {num_connections}",
            side=servers[name].title,
            unit="requests a second",
        )
        for model, num_connections, name in sorted(found, key=lambda name: (list(CASES).index(name[0]), name[1]))
    ]


SHOWN: Final = {
    "model": columns.case,
    "server": columns.side,
    "requests/s": columns.values(0),
    "p50 ms": columns.more("p50_ms", 1),
    "p99 ms": columns.more("p99_ms", 1),
    "errors": lambda one: f"{sum(one.more['num_errors']):,}",
    "PSS, MiB": columns.more("memory_mib", 0),
}


def show_servers(servers: Mapping[str, Server], *, logs: Path) -> None:
    rows = []
    for name, server in servers.items():
        threads = {threads_of(path) for path in logs.glob(f"{name}-*.log")} - {""}
        rows.append((server.title, server.versions, "; ".join(filter(None, (server.note, *sorted(threads))))))
    show(("server", "versions", "settings"), rows)


def prepare_servers(names: Sequence[str], *, folder: Path) -> dict[str, Server]:
    """Returns the servers that can be installed; says in one line which cannot."""
    servers = {}
    for name in names:
        try:
            servers[name] = make_server(name, folder=folder)
        except InstallationError as error:
            print(f"left out: {error}", file=sys.stderr)
    return servers


def run_rounds(options: argparse.Namespace, servers: Mapping[str, Server], found: Results, *, logs: Path) -> list[str]:
    """Measures all servers in turn.

    The error of a server that does not start or answer is printed; what was measured of it before counts.

    Args:
        options: the options of the command line.
        servers: the servers by name.
        found: is filled as figures are measured, so that what ends this early leaves what there is.
        logs: the folder for the servers' output.

    Returns:
        The errors of servers that did not start or answer.
    """
    errors = []
    for number, (model, name) in turns(list(product(options.models, servers)), num_rounds=options.rounds):
        case, log = Case(name=model, folder=options.folder / "models"), logs / f"{name}-{model}.log"
        try:
            for num_connections, figures in measure(
                servers[name], case, options.connections, seconds=options.seconds, wrk=options.wrk, log=log
            ):
                found.setdefault((model, num_connections, name), []).append(figures)
        except (StartError, TimeoutError) as error:
            errors.append(f"{servers[name].title}, {model}, round {number + 1}: {error}")
            print(f"\n{errors[-1]}", file=sys.stderr)
    return errors


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, folder="serving", num_rounds=5)
    program.add("--seconds", type=count, default=10, help="how long each load takes (default: %(default)s)")
    program.add_choice("--models", list(CASES))
    program.add_choice("--servers", NAMES)
    program.add("--connections", type=counts, default=[1, 8, 32, 128], help="default: 1,8,32,128")
    small = {"rounds": 1, "seconds": 1, "models": ["tabular"], "servers": ["lockstep"], "connections": [2]}
    options = program.parse(small=small)
    options.wrk = shutil.which("wrk")
    if options.wrk is None:
        program.fail("wrk is not installed; on Debian and Ubuntu: apt-get install wrk")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process of Ray compiles all of Ray anew
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("ended by SIGTERM"))  # what was started is ended
    logs = program.logs()
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    write_models(options.folder / "models")
    servers = prepare_servers(options.servers, folder=options.folder)
    found: Results = {}
    errors: list[str] = []
    try:
        errors = run_rounds(options, servers, found, logs=logs)
    finally:
        results = results_of(found, servers)
        columns.show_results(results, SHOWN)
        show_servers(servers, logs=logs)
        program.finish(results, packages={one.title: one.versions for one in servers.values()}, errors=errors)
    if errors:
        program.fail(f"servers did not start or answer {len(errors)} times: see above")


if __name__ == "__main__":
    main()
