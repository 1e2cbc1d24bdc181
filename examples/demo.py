"""The whole way, end to end: data, service, job, model, predictions. `make demo` runs this.

Each step is a command that you can type yourself; the demo prints it before it runs it. The service runs in a home of
its own, `.demo/home` beside the README, and is taken down at the end, whatever happens.

    python examples/demo.py [--fashion-mnist FOLDER] [--folder FOLDER]
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lockstep.client import Client
from lockstep.data import RecordSource, decode_example
from lockstep.home import Home

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "fashion_mnist"
MODEL = "fashion"
NUM_IMAGES = 10
CLOTHES = (
    *("T-shirt/top", "trouser", "pullover", "dress", "coat"),
    *("sandal", "shirt", "sneaker", "bag", "ankle boot"),
)

console = Console(highlight=False, soft_wrap=True)


def lockstep(*arguments: str, check: bool = True) -> None:
    """Shows a command and runs it; ends the demo if it fails."""
    console.print(Text(f"$ lockstep {shlex.join(arguments)}", style="bold cyan"))
    code = subprocess.run([sys.executable, "-m", "lockstep.cli.main", *arguments], check=False).returncode
    if check and code != 0:
        sys.exit(code)


def step(number: int, text: str) -> None:
    """Prints what comes next."""
    console.print(f"\n[bold]{number}. {text}[/]")


def packed_name(bucket: Path) -> str:
    """Returns the name of the data set that was just packed: Fashion-MNIST, or the digits where it could not be had."""
    newest = max(bucket.glob("*-train.manifest.json"), key=lambda path: path.stat().st_mtime)
    return newest.name.removesuffix("-train.manifest.json")


def test_images(bucket: Path, name: str) -> tuple[list[list[list[int]]], list[int]]:
    """Returns some test images, 28 rows of 28 brightnesses from 0 to 255, and their labels."""
    source = RecordSource(str(bucket / f"{name}-test-*.tfrec"))
    records = [decode_example(source[index]) for index in range(NUM_IMAGES)]
    images = []
    for record in records:
        pixels = list(record["image"][0])
        images.append([pixels[row * 28 : row * 28 + 28] for row in range(28)])
    return images, [int(record["label"][0]) for record in records]


def show_predictions(name: str, predictions: Sequence[Sequence[float]], labels: Sequence[int]) -> None:
    """Prints what the model says beside what is true."""
    names = CLOTHES if name == "fashion-mnist" else tuple(str(digit) for digit in range(10))
    table = Table("image", "predicted", "sure", "true", "", box=None, pad_edge=False)
    for index, (scores, label) in enumerate(zip(predictions, labels, strict=True)):
        best = max(range(len(scores)), key=lambda position: scores[position])
        mark = "[green]right[/]" if best == label else "[red]wrong[/]"
        table.add_row(str(index), names[best], f"{scores[best]:.0%}", names[label], mark)
    console.print(table)


def arguments() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description="The whole way, end to end: data, service, job, model, predictions.")
    parser.add_argument("--fashion-mnist", metavar="FOLDER", help="where the four files of Fashion-MNIST lie")
    parser.add_argument("--folder", type=Path, default=ROOT / ".demo", help="where the demo keeps its home and bucket")
    return parser.parse_args()


def main() -> None:
    """Runs the demo."""
    asked = arguments()
    started = time.monotonic()
    folder: Path = asked.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["LOCKSTEP_HOME"] = str(folder / "home")
    bucket = folder / "data"
    job = f"fashion_mnist_{datetime.now().astimezone():%Y%m%d_%H%M%S}"

    step(1, "Get the data, and pack it into sharded record files in a bucket")
    named = ("--folder", asked.fashion_mnist) if asked.fashion_mnist else ()
    lockstep("data", "pack", "fashion-mnist", str(bucket), *named, "--or-digits")
    name = packed_name(bucket)

    step(2, "Start the service: engine, database, REST interface")
    if (folder / "home" / "engine" / "head.json").exists():
        lockstep("down", "--cancel")  # a demo that was killed left it running
    try:
        lockstep("up")

        step(3, "Train as a managed job, on two accelerators (simulated where there are none), and follow its log")
        config = EXAMPLE / "config.yaml"
        lockstep(
            *("submit", job, "--package-path", str(EXAMPLE), "--module-name", "train", "--config", str(config)),
            *("--", "--data", str(bucket), "--epochs", "2"),
        )

        step(4, "Deploy the trained model, and ask it over REST")
        lockstep("deploy", MODEL, "--job", job)
        images, labels = test_images(bucket, name)
        with Client.from_home(Home.from_env()) as client:
            request = f'POST /v1/projects/local/models/{MODEL}:predict {{"instances": [...]}}'
            console.print(Text(request, style="bold cyan"))
            show_predictions(name, client.predict(MODEL, images), labels)
    finally:
        step(5, "Take the service down; everything stays in the bucket")
        lockstep("down", "--cancel", check=False)
    console.print(f"\nThe demo took {time.monotonic() - started:.0f} s. Its home and bucket are in {folder}.")


if __name__ == "__main__":
    main()
