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
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Final

HERE: Final = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import httpx  # noqa: E402 - what follows lies beside this file
from harness.environments import InstallationError  # noqa: E402
from harness.tables import console, show  # noqa: E402
from serving.cases import CASES, Case  # noqa: E402
from serving.load import LoadResult, send_load  # noqa: E402
from serving.processes import pss_mib  # noqa: E402
from serving.servers import NAMES, Endpoint, Server, StartError, make_server, threads_of  # noqa: E402
from workloads.surroundings import hardware  # noqa: E402

CONNECTIONS: Final = "1,8,32,128"
TOLERANCE: Final = 1e-4
WARM_UP_S: Final = 1
ANSWER_S: Final = 60.0
NUM_CHECKS: Final = 3
"""How often each sample is sent before a server is measured. All samples are sent at the same time."""
MODELS_SOURCE: Final = HERE / "serving" / "models.py"


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One measurement.

    Attributes:
        load: what came of the load.
        memory_mib: the memory of the server's processes right after it.
    """

    load: LoadResult
    memory_mib: float


Results = dict[tuple[str, int, str], list[Cell]]
"""The cells of all rounds, by model, connections and server."""


def write_models(folder: Path) -> None:
    """Writes the models where they are not yet, or older than the program that makes them."""
    folder.mkdir(parents=True, exist_ok=True)
    written = [Case(name=name, folder=folder).samples_path for name in CASES]
    if all(path.exists() and path.stat().st_mtime > MODELS_SOURCE.stat().st_mtime for path in written):
        return
    environment = {**os.environ, "PYTHONPATH": str(HERE), "JAX_PLATFORMS": "cpu"}
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
) -> Iterator[tuple[int, Cell]]:
    """Starts a server, and yields each number of connections with its cell.

    Raises:
        StartError: the server does not start, or does not answer any more.
    """
    with server.serve(case, log) as endpoint:
        check_predictions(endpoint, case, server=server.title)
        for num_connections in connections:
            for duration_s in (WARM_UP_S, seconds):  # the first one does not count
                load = send_load(
                    endpoint.url,
                    wrk=wrk,
                    body=case.body_path,
                    authorization=endpoint.authorization,
                    num_connections=num_connections,
                    seconds=duration_s,
                )
                memory_mib = pss_mib(endpoint.processes())
                await_idle(endpoint, case)
            yield num_connections, Cell(load=load, memory_mib=memory_mib)


def await_idle(endpoint: Endpoint, case: Case) -> None:
    """Returns once a server answers again, so that requests of a load that it still has are not those of the next one.

    Raises:
        StartError: it does not answer.
    """
    instances, _ = case.samples()
    deadline = time.monotonic() + ANSWER_S
    with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
        while True:
            try:
                endpoint.predict(client, instances[0])
                return
            except httpx.HTTPError as error:
                if time.monotonic() > deadline:
                    raise StartError(f"the server does not answer after a load: {error}") from None
                time.sleep(0.1)


def milliseconds(values_s: Sequence[float | None]) -> str:
    """Returns the median, for the table; without those where no answer came."""
    answered = [value_s for value_s in values_s if value_s is not None]
    return f"{median(answered) * 1e3:,.1f}" if answered else "no answer"


def show_results(results: Results) -> None:
    head = ("model", "connections", "server", "requests/s", "least", "most", "p50 ms", "p99 ms", "errors", "PSS, MiB")
    rows = []
    for (model, num_connections, title), cells in sorted(
        results.items(), key=lambda item: (list(CASES).index(item[0][0]), item[0][1])
    ):
        speeds = [cell.load.requests_per_s for cell in cells]
        rows.append(
            (
                CASES[model],
                str(num_connections),
                title,
                *(f"{speed:,.0f}" for speed in (median(speeds), min(speeds), max(speeds))),
                milliseconds([cell.load.p50_s for cell in cells]),
                milliseconds([cell.load.p99_s for cell in cells]),
                f"{sum(cell.load.num_errors for cell in cells):,}",
                f"{median(cell.memory_mib for cell in cells):,.0f}",
            )
        )
    show(head, rows)


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


def run_rounds(options: argparse.Namespace, servers: Mapping[str, Server], results: Results, *, logs: Path) -> int:
    """Measures all servers in turn, so that what else the machine does meets all alike. Each round begins with another.

    The error of a server that does not start or answer is printed; what was measured of it before counts.

    Args:
        options: the options of the command line.
        servers: the servers by name.
        results: is filled as cells are measured, so that what ends this early leaves what there is.
        logs: the folder for the servers' output.

    Returns:
        How many times a server did not start or answer.
    """
    wrk = options.wrk
    num_failures = 0
    names = list(servers)
    for number in range(options.rounds):
        first = number % max(1, len(names))
        for model in options.models:
            case = Case(name=model, folder=options.folder / "models")
            for name in names[first:] + names[:first]:
                log = logs / f"{name}-{model}.log"
                cells = measure(servers[name], case, options.connections, seconds=options.seconds, wrk=wrk, log=log)
                try:
                    for num_connections, cell in cells:
                        results.setdefault((model, num_connections, servers[name].title), []).append(cell)
                except (StartError, TimeoutError) as error:
                    num_failures += 1
                    print(f"\n{servers[name].title}, {model}, round {number + 1}: {error}", file=sys.stderr)
                    continue
                print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return num_failures


def chosen(text: str, *, allowed: Sequence[str]) -> list[str]:
    """Parses names with commas between them."""
    names = text.split(",")
    unknown = [name for name in names if name not in allowed]
    if unknown:
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; allowed: {', '.join(allowed)}")
    return names


def counts(text: str) -> list[int]:
    """Parses positive whole numbers with commas between them."""
    if not all(part.isdecimal() and int(part) > 0 for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"received {text}; allowed: whole numbers of 1 or more, such as {CONNECTIONS}")
    return [int(part) for part in text.split(",")]


def count(text: str) -> int:
    """Parses one positive whole number."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"received {text}; allowed: a whole number of 1 or more")
    return int(text)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure prediction servers on this machine.")
    parser.add_argument("--rounds", type=count, default=5, help="how often all are measured (default: %(default)s)")
    parser.add_argument("--seconds", type=count, default=10, help="how long each load takes (default: %(default)s)")
    parser.add_argument(
        "--models",
        type=lambda text: chosen(text, allowed=list(CASES)),
        default=",".join(CASES),
        help="default: %(default)s",
    )
    parser.add_argument(
        "--servers", type=lambda text: chosen(text, allowed=NAMES), default=",".join(NAMES), help="default: %(default)s"
    )
    parser.add_argument("--connections", type=counts, default=CONNECTIONS, help="default: %(default)s")
    parser.add_argument(
        "--folder", type=Path, default=HERE / ".data" / "serving", help="where models and environments are kept"
    )
    return parser.parse_args()


def main() -> None:
    """Runs the benchmark."""
    options = parse()
    options.wrk = shutil.which("wrk")
    if options.wrk is None:
        sys.exit("benchmarks/serving.py: wrk is not installed; on Debian and Ubuntu: apt-get install wrk")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # with it, each process of Ray compiles all of Ray anew
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit("ended by SIGTERM"))  # what was started is ended
    options.folder = options.folder.resolve()
    logs = options.folder / "logs"
    shutil.rmtree(logs, ignore_errors=True)
    logs.mkdir(parents=True)
    write_models(options.folder / "models")
    servers = prepare_servers(options.servers, folder=options.folder)
    console.print(f"{hardware()}; rounds: {options.rounds}, seconds: {options.seconds}")
    results: Results = {}
    num_failures = 0
    try:
        num_failures = run_rounds(options, servers, results, logs=logs)
    finally:
        show_results(results)
        show_servers(servers, logs=logs)
    if num_failures:
        sys.exit(f"servers did not start or answer {num_failures} times: see above")


if __name__ == "__main__":
    main()
