"""Measures the record pipeline beside ``tf.data``: the same files, in turn, each side in processes of its own.

``python benchmarks/records.py [--tensorflow PYTHON] [--rounds N] [--cases a,b] [--folder FOLDER]``. Without a Python
that has TensorFlow an environment is made in the folder, once. Prints a table as Markdown: medians over the rounds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Any, Final

from reading.data import prepare

HERE: Final = Path(__file__).resolve().parent
TENSORFLOW: Final = "tensorflow-cpu==2.21.0"
CASES: Final = {
    "small-in-order": ("60,000 small records, in order", ("small-in-order",)),
    "small-shuffled": ("60,000 small records, shuffled", ("small-shuffled",)),
    "photos-decoded": ("2,048 JPEGs, decoded", ("photos-decoded",)),
    "photos-uint8": ("2,048 JPEGs, decoded, cropped, flipped", ("photos-uint8",)),
    "photos-float32": (
        "the same, to float32 in -1..1",
        ("photos-float32", "photos-float32, a batch at a time"),
    ),
    "rows": ("60,000 rows of an array, shuffled: `Dataset`", ("rows",)),
    "records-one-by-one": ("60,000 small records, parsed one by one, in batches: `Dataset`", ("records-one-by-one",)),
    "records-by-batch": ("60,000 small records, in batches, parsed: `Dataset`", ("records-by-batch",)),
    "pack-as-they-are": ("2,048 JPEG files packed, checked", ("pack-as-they-are",)),
    "pack-encoded": ("2,048 JPEG files packed, resized to 192 x 192", ("pack-encoded",)),
}


def run(python: str, side: str, case: str, folder: Path, num_epochs: int) -> dict[str, Any]:
    command = [python, "-m", f"reading.{side}", case, str(folder), str(num_epochs)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])}
    environment["JAX_PLATFORMS"] = "cpu"
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def with_tensorflow(folder: Path) -> str:
    python = folder / "tensorflow" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(python.parent.parent)], check=True)
        subprocess.run([str(python), "-m", "pip", "install", "--quiet", TENSORFLOW], check=True)
    return str(python)


def middle(results: list[dict[str, Any]]) -> dict[str, float]:
    """Medians over the rounds: of the first epoch with opening, of later epochs (each round's median), of the rest."""
    return {
        "first_s": median(result["opened_s"] + result["epochs_s"][0] for result in results),
        "later_s": median(median(result["epochs_s"][1:]) for result in results),
        "processor_s": median(result["processor_s"] for result in results),
        "peak_mib": median(result["peak_mib"] for result in results),
        "imported_mib": median(result["imported_mib"] for result in results),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--cases", default=",".join(CASES))
    parser.add_argument("--folder", type=Path, default=HERE / ".data", help="where data and environments are kept")
    options = parser.parse_args()
    prepare(options.folder)
    tensorflow = options.tensorflow or with_tensorflow(options.folder)
    contenders = []
    for case in options.cases.split(","):
        contenders.append((case, "Lockstep", sys.executable, "ours", case))
        contenders += [(case, "tf.data", tensorflow, "theirs", way) for way in CASES[case][1]]
    results: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for _ in range(options.rounds):  # all in turn, so that what else the machine does meets all alike
        for case, side, python, module, way in contenders:
            found = run(python, module, way, options.folder, options.epochs)
            results.setdefault((case, side, way), []).append(found)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print("| what | side | first time s | later times s | processor s | peak MiB | of that imports | times as fast |")
    print("|---|---|---|---|---|---|---|---|")
    for (case, side, way), rounds in results.items():
        row = middle(rounds)
        ours = middle(results[case, "Lockstep", case])
        faster = "" if side == "Lockstep" else f"{row['later_s'] / ours['later_s']:.2f}"
        name = side if way == case else f"{side}, {way.split(', ')[1]}"
        print(
            f"| {CASES[case][0]} | {name} | {row['first_s']:.2f} | {row['later_s']:.3f} | {row['processor_s']:.2f} "
            f"| {row['peak_mib']:.0f} | {row['imported_mib']:.0f} | {faster} |"
        )


if __name__ == "__main__":
    main()
