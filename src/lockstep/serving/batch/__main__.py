"""The program of a batch prediction's replicas: ``python -m lockstep.serving.batch --model PATH ...``.

An error is reported in one line on standard error, and by the error's exit code.
"""

from __future__ import annotations

import argparse
import hashlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.serving.batch.options import BatchOptions, InputFormat, OutputFormat
from lockstep.serving.batch.run import BatchRun, Place
from lockstep.serving.opening import open_model
from lockstep.topology import Topology


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a replica. Returns the exit code of the process.

    Args:
        arguments: the command-line arguments without the program's name; the process's own by default.
    """
    options = _parse(arguments)
    logging.basicConfig(stream=sys.stdout, format="%(message)s")
    logging.getLogger("lockstep.serving.batch").setLevel(logging.INFO)
    try:
        _run(options)
    except LockstepError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return 0


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m lockstep.serving.batch", description="Predict files of instances.")
    parser.add_argument("--model", required=True, type=Path, help="path of a .keras or .stablehlo file")
    parser.add_argument("--display-url", help="URL of the model in error messages")
    parser.add_argument("--has-code", action="store_true", help="packages with the model's classes can be imported")
    parser.add_argument("--program", help="the module that the model's job ran")
    parser.add_argument("--run-id", required=True, help="distinguishes the job from others with the same output path")
    parser.add_argument("--input-path", required=True, action="append", help="URL of files; may be repeated")
    parser.add_argument("--output-path", required=True, help="URL of the folder for predictions")
    parser.add_argument("--input-format", required=True, type=InputFormat, choices=list(InputFormat))
    parser.add_argument("--output-format", type=OutputFormat, choices=list(OutputFormat), default=OutputFormat.JSON)
    parser.add_argument("--batch-size", type=int, default=64, help="instances in one run of the model")
    parser.add_argument("--shard-size-bytes", type=int, help="how much input makes one shard")
    parser.add_argument("--key-field", help="field of an instance that is copied to its prediction")
    return parser.parse_args(arguments)


def _run(options: argparse.Namespace) -> None:
    asked = BatchOptions(
        run_id=options.run_id,
        input_paths=tuple(options.input_path),
        output_path=options.output_path,
        input_format=options.input_format,
        output_format=options.output_format,
        batch_size=options.batch_size,
        shard_size_bytes=options.shard_size_bytes,
        key_field=options.key_field,
    )
    topology = Topology.from_env()
    model = open_model(
        options.model,
        max_batch_size=asked.batch_size,
        display_url=options.display_url,
        has_code=options.has_code,
        program=options.program,
    )
    with options.model.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    place = Place(index=topology.process_id, num_replicas=max(topology.num_processes, 1))
    BatchRun(asked, model=model, model_sha256=digest, place=place, folder=Path()).run()


if __name__ == "__main__":
    sys.exit(main())
