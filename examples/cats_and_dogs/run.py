"""The whole way, end to end: pictures, service, job, model, predictions.

    python examples/cats_and_dogs/run.py                                        # drawn faces, a small net: two minutes
    python examples/cats_and_dogs/run.py --cluster                              # the same on two machines
    python examples/cats_and_dogs/run.py --archive kagglecatsanddogs_5340.zip   # photographs, DenseNet121

Each step is a command that you can type yourself; it is printed before it runs. Arguments after `--` go to `train.py`.
The service runs in a home of its own, `.demo/home` beside the README, and is taken down at the end, whatever happens.
"""

from __future__ import annotations

import argparse
import base64
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from pack import NAME
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.client import Client
from lockstep.data import RecordSource, decode_example, read_manifest
from lockstep.home import Home

HERE = Path(__file__).resolve().parent
MODEL = "cats_and_dogs"
NUM_PICTURES = 10
WORKER = (
    *("--worker-count", "1", "--worker-machine-type", "n1-standard-8"),
    *("--worker-accelerator", "count=2,type=nvidia-tesla-v100"),
)
DRAWN = (
    *("--backbone", "small", "--weights", "none", "--epochs", "6", "--fine-tuning-epochs", "2"),
    *("--batch-size", "32", "--learning-rate", "3e-3"),
)
"""Arguments of `train.py` with which drawn faces are learnt on a CPU."""

console = Console(highlight=False, soft_wrap=True)


def run(*command: str, shown: str, check: bool = True) -> None:
    """Shows a command and runs it; ends the program if it fails."""
    console.print(Text(f"$ {shown}", style="bold cyan"))
    code = subprocess.run([sys.executable, *command], check=False).returncode
    if check and code != 0:
        sys.exit(code)


def lockstep(*arguments: str, check: bool = True) -> None:
    """Runs a command of Lockstep."""
    run("-m", "lockstep.cli.main", *arguments, shown=f"lockstep {shlex.join(arguments)}", check=check)


def script(name: str, *arguments: str) -> None:
    """Runs a script of this folder."""
    run(str(HERE / name), *arguments, shown=f"python {name} {shlex.join(arguments)}")


def step(number: int, text: str) -> None:
    """Prints what comes next."""
    console.print(f"\n[bold]{number}. {text}[/]")


def validation_pictures(bucket: str) -> tuple[list[bytes], list[str]]:
    """Returns some pictures that were not trained on, as JPEG files, and the names of their classes."""
    classes = read_manifest(bucket, name=NAME, split="validation").classes
    source = RecordSource(f"{bucket}/{NAME}-validation-*.tfrec")
    records = [decode_example(source[index]) for index in range(min(NUM_PICTURES, len(source)))]
    return [bytes(record["image"][0]) for record in records], [classes[int(record["label"][0])] for record in records]


def show_predictions(predictions: Sequence[dict[str, float]], names: Sequence[str]) -> None:
    """Prints what the model says beside what is true."""
    table = Table("picture", "predicted", "probability", "true", "", box=None, pad_edge=False)
    for index, (probabilities, name) in enumerate(zip(predictions, names, strict=True)):
        best = max(probabilities, key=lambda candidate: probabilities[candidate])
        mark = "[green]right[/]" if best == name else "[red]wrong[/]"
        table.add_row(str(index), best, f"{probabilities[best]:.1%}", name, mark)
    console.print(table)


def predict(folder: Path, bucket: str) -> None:
    """Sends JPEG files to the deployed model, by a command and over REST."""
    pictures, names = validation_pictures(bucket)
    first = folder / "picture.jpg"
    first.write_bytes(pictures[0])
    lockstep("predict", MODEL, "--image", str(first))
    instances = [{"b64": base64.b64encode(picture).decode()} for picture in pictures]
    with Client.from_home(Home.from_env()) as client:
        request = f'POST /v1/projects/local/models/{MODEL}:predict {{"instances": [{{"b64": "..."}}, ...]}}'
        console.print(Text(request, style="bold cyan"))
        show_predictions(client.predict(MODEL, instances), names)


def parse_arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="The whole way: pictures, service, job, model, predictions.")
    parser.add_argument("--archive", help="folder or .zip of pictures by class; drawn faces by default")
    parser.add_argument("--image-size", type=int, help="of packed pictures; 224 by default, 64 for drawn faces")
    parser.add_argument("--cluster", action="store_true", help="train on two machines of cluster.yaml")
    parser.add_argument("--folder", type=Path, default=HERE.parents[1] / ".demo", help="for home, bucket and pictures")
    parser.add_argument("training", nargs="*", metavar="-- ARGUMENTS", help="arguments of train.py")
    return parser.parse_args()


def submit(arguments: argparse.Namespace, job: str, bucket: str) -> None:
    """Runs the training as a job, and prints its log."""
    own = () if arguments.archive else DRAWN
    lockstep(
        *("submit", job, "--package-path", str(HERE), "--module-name", "train"),
        *("--config", str(HERE / "config.yaml"), *(WORKER if arguments.cluster else ())),
        *("--", "--data", bucket, *own, *arguments.training),
    )


def main() -> None:
    """Runs all steps."""
    arguments = parse_arguments()
    started = time.monotonic()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    home = folder / "home"
    os.environ["LOCKSTEP_HOME"] = str(home)
    archive = arguments.archive or str(folder / "drawn.zip")
    bucket = str(folder / "pictures")
    size = arguments.image_size or (224 if arguments.archive else 64)

    step(1, "Get the pictures, and pack them into sharded record files in a bucket")
    if not arguments.archive:
        script("draw.py", archive)
    script("pack.py", archive, bucket, "--image-size", str(size))

    step(2, "Start the service: engine, database, REST interface")
    if (home / "engine" / "head.json").exists():
        lockstep("down", "--cancel")  # an earlier run that was killed left it running
    try:
        if arguments.cluster:
            lockstep("cluster", "use", str(HERE / "cluster.yaml"))
        lockstep("up")

        machines = "two machines with two accelerators each" if arguments.cluster else "two accelerators"
        step(3, f"Train as a managed job on {machines} (simulated where there are none), and follow its log")
        job = f"cats_and_dogs_{datetime.now().astimezone():%Y%m%d_%H%M%S}"
        submit(arguments, job, bucket)

        step(4, "Deploy the trained model, and send it pictures")
        lockstep("deploy", MODEL, "--job", job)
        predict(folder, bucket)
    finally:
        step(5, "Take the service down; everything stays in the bucket")
        lockstep("down", "--cancel", check=False)
        if arguments.cluster:
            lockstep("cluster", "reset", check=False)
    console.print(f"\nThis took {time.monotonic() - started:.0f} s. Home, bucket and pictures are in {folder}.")


if __name__ == "__main__":
    main()
