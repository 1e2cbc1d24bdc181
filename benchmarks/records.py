"""Measures the record pipeline beside ``tf.data``: the same files, in turn, each side in processes of its own.

``python benchmarks/records.py [--tensorflow PYTHON] [--rounds N] [--cases a,b] [--folder FOLDER]``. Without a Python
that has TensorFlow an environment is made in the folder, once. Each round is a new process, since some of it is done
once in a process. Prints a table as Markdown, and writes JSON. "First" has the opening; "later" is the median of the
other epochs.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from harness import columns
from harness.environments import own_versions, peer_python, versions
from harness.options import count
from harness.program import Program
from harness.results import measure_in_turn
from harness.sides import SideSpec, fresh_round
from reading.data import prepare

OURS: Final = "Lockstep"
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
SHOWN: Final = {
    "what": columns.case,
    "side": columns.side,
    "later times s": columns.values(3),
    "first time s": columns.more("first_s"),
    "processor s": columns.more("processor_s"),
    "peak MiB": columns.more("peak_mib", 0),
    "of that imports": columns.more("imported_mib", 0),
}


def main() -> None:
    """Runs the benchmark."""
    program = Program(__doc__, num_rounds=5)
    program.add("--tensorflow", type=Path, help="a Python that has TensorFlow")
    program.add("--epochs", type=count, default=4, help="epochs of a round (default: %(default)s)")
    program.add_choice("--cases", list(CASES))
    options = program.parse(small={"cases": ["small-in-order", "rows"], "rounds": 1, "epochs": 2})
    prepare(options.folder)
    tensorflow = options.tensorflow or peer_python("tensorflow", folder=options.folder)
    specs: dict[tuple[str, str], SideSpec] = {}
    for case in options.cases:
        title, others = CASES[case]
        ours = (OURS, Path(sys.executable), "reading.ours", case)
        for side, python, module, way in (ours, *(("tf.data", tensorflow, "reading.theirs", way) for way in others)):
            specs[title, side if way == case else f"{side}, {way.split(', ')[1]}"] = SideSpec(
                title=f"{module} {way}",
                python=python,
                module=module,
                order={"folder": str(options.folder), "num_epochs": options.epochs, "case": way},
                variables={"JAX_PLATFORMS": "cpu"},
            )
    results = measure_in_turn(
        specs,
        lambda *name: fresh_round(specs[name], log=program.logs() / f"{specs[name].title}.log"),
        num_rounds=options.rounds,
        value="later_s",
        unit="seconds of an epoch",
    )
    packages = {OURS: own_versions("simplejpeg", "numpy"), "tf.data": versions(tensorflow, ["tensorflow-cpu"])}
    program.finish(results, {**SHOWN, "times as fast": columns.of_ours(results, OURS)}, packages=packages)


if __name__ == "__main__":
    main()
