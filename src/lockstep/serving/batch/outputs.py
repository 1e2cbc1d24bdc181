"""The files that a batch prediction writes: a shard's predictions and errors, and what says that they are complete."""

from __future__ import annotations

import contextlib
import csv
import io
import itertools
import json
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from lockstep.errors import CorruptDataError, InvalidInputError, MissingInputError
from lockstep.serving.batch.options import InputFormat, OutputFormat
from lockstep.serving.batch.plan import PLAN, Plan
from lockstep.serving.batch.predicting import Predicted
from lockstep.serving.batch.reading import line_of
from lockstep.storage import AbstractBucket, open_bucket

RESULTS: Final = "prediction.results"
ERRORS: Final = "prediction.errors_stats"
KEYS: Final = "prediction.keys.csv"
STATE: Final = "prediction.state"
PREDICTION: Final = "prediction"
FILE: Final = "file"

_ENCODER: Final = json.JSONEncoder(separators=(",", ":"))
_OUTPUT: Final = re.compile(rf"({re.escape(RESULTS)}|{re.escape(ERRORS)})-\d+-of-\d+")
_DONE: Final = re.compile(r"\d+\.json")


@final
@dataclass(frozen=True, kw_only=True)
class ShardDone:
    """Says that the files of a shard are complete.

    Attributes:
        digest: the digest of the plan.
        num_predictions: the number of predictions.
        num_errors: the number of instances without one.
        columns: the names of the columns of CSV; empty if there is no prediction, or another format.
    """

    digest: str
    num_predictions: int
    num_errors: int
    columns: tuple[str, ...] = ()


_SHARD_DONE: Final = TypeAdapter(ShardDone)


def file_name(kind: str, *, shard: int, num_shards: int) -> str:
    """Returns the name of a shard's file, such as ``prediction.results-00003-of-00012``."""
    return f"{kind}-{shard:05d}-of-{num_shards:05d}"


@final
class OutputFolder:
    """The folder that a batch prediction writes to. Every method blocks.

    Args:
        url: the URL of the folder.
        run_id: distinguishes the job from others that write to the same folder.
    """

    def __init__(self, url: str, *, run_id: str) -> None:
        self._bucket: AbstractBucket = open_bucket(url)
        self._plan_key = f"{STATE}/{run_id}/plan.json"

    def read_plan(self) -> Plan | None:
        """Returns the job's plan; None if it has not been written.

        Raises:
            CorruptDataError: something else than a plan is in its place.
            StorageError: the bucket could not be read.
        """
        try:
            return PLAN.validate_json(self._bucket.read(self._plan_key))
        except MissingInputError:
            return None
        except ValidationError:
            raise CorruptDataError(f"{self._bucket.url_of(self._plan_key)} is not a plan") from None

    def write_plan(self, plan: Plan) -> None:
        """Writes the job's plan, unless the folder has results of other inputs or of another model.

        Raises:
            InvalidInputError: the folder has such results.
            StorageError: the bucket could not be read or written.
        """
        known = f"{STATE}/{plan.digest}/plan.json"
        if not self._bucket.exists(known):
            earlier = next((item.key for item in self._bucket.list("prediction.") if _OUTPUT.fullmatch(item.key)), None)
            if earlier is not None:
                raise InvalidInputError(
                    "outputPath: the folder has results of other inputs or of another model",
                    received=self._bucket.url_of(earlier),
                    action="choose another folder, or delete these results",
                )
            self._bucket.write(known, PLAN.dump_json(plan))
        self._bucket.write(self._plan_key, PLAN.dump_json(plan))

    def read_done(self, plan: Plan, *, shard: int) -> ShardDone | None:
        """Returns what says that a shard is complete; None if nothing does.

        Raises:
            StorageError: the bucket could not be read.
        """
        try:
            done = _SHARD_DONE.validate_json(self._bucket.read(_done_key(plan, shard)))
        except (MissingInputError, ValidationError):
            return None
        return done if done.digest == plan.digest else None

    def numbers_done(self, plan: Plan) -> list[int]:
        """Returns the numbers of the shards that are complete, in order.

        Raises:
            StorageError: the bucket could not be listed.
        """
        folder = f"{STATE}/{plan.digest}/"
        names = (item.key.removeprefix(folder) for item in self._bucket.list(folder))
        return sorted(int(name.removesuffix(".json")) for name in names if _DONE.fullmatch(name))

    def write_shard(self, plan: Plan, *, shard: int, files: ShardFiles) -> ShardDone:
        """Writes the files of a shard, and that they are complete.

        Raises:
            StorageWriteError: the bucket could not be written.
        """
        paths = files.close()
        for kind, path in paths.items():
            self._bucket.upload(file_name(kind, shard=shard, num_shards=len(plan.shards)), path=path)
        done = files.summary(plan)
        self._bucket.write(_done_key(plan, shard), _SHARD_DONE.dump_json(done))
        return done

    def write_columns(self, plan: Plan) -> None:
        """Writes the names of the columns of CSV files into a file of their own.

        Raises:
            StorageError: the bucket could not be read or written.
        """
        found = (self.read_done(plan, shard=shard) for shard in range(len(plan.shards)))
        columns = next((done.columns for done in found if done is not None and done.columns), ())
        self._bucket.write(KEYS, _csv_line(columns).encode())


def _done_key(plan: Plan, shard: int) -> str:
    return f"{STATE}/{plan.digest}/{shard:05d}.json"


@final
class ShardFiles:
    """The files of a shard while they are written, in a local folder. A context manager, which deletes them.

    Args:
        plan: the plan.
        output_names: the names of the model's outputs.
        folder: the local folder for temporary files.
    """

    def __init__(self, plan: Plan, *, output_names: Sequence[str], folder: Path) -> None:
        self._plan = plan
        self._names = tuple(output_names)
        self._folder = tempfile.TemporaryDirectory(prefix="shard-", dir=folder)
        self._opened = contextlib.ExitStack()
        self._paths = {kind: Path(self._folder.name, kind) for kind in (RESULTS, ERRORS)}
        self._files: dict[str, IO[str]] = {
            kind: self._opened.enter_context(path.open("w", encoding="utf-8", newline=""))
            for kind, path in self._paths.items()
        }
        self._columns: tuple[str, ...] = ()
        self.num_predictions = self.num_errors = 0

    def __enter__(self) -> ShardFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
        self._folder.cleanup()

    def add(self, batch: Sequence[Predicted]) -> None:
        """Adds the predictions of a batch, and the errors of instances without one.

        Raises:
            StorageError: the file of an instance without a prediction could not be read to find the number of its line.
        """
        for predicted in batch:
            outputs = predicted.outputs
            problem = predicted.problem if outputs is None else self._add_prediction(predicted, outputs)
            if problem:
                self._add_error(predicted, problem)

    def _add_prediction(self, predicted: Predicted, outputs: dict[str, np.ndarray]) -> str:
        """Adds a prediction; returns the reason if the format cannot have it."""
        label = self._label(predicted)
        if self._plan.output_format is OutputFormat.JSON:
            values = {name: outputs[name].tolist() for name in self._names}
            value = values[self._names[0]] if len(self._names) == 1 else values
            document = {**label, PREDICTION: value} if label else value
            self._files[RESULTS].write(_ENCODER.encode(document) + "\n")
        else:
            columns = (*label, *_columns(outputs, self._names))
            self._columns = self._columns or columns
            if columns != self._columns:
                return f"the prediction has {len(columns)} columns, the ones before it have {len(self._columns)}"
            flat = itertools.chain.from_iterable(outputs[name].ravel().tolist() for name in self._names)
            self._files[RESULTS].write(_csv_line([*label.values(), *flat]))
        self.num_predictions += 1
        return ""

    def _label(self, predicted: Predicted) -> dict[str, Any]:
        """Returns what says whose prediction it is; empty if only its place does."""
        if self._plan.input_format is InputFormat.IMAGE_FILES:
            return {FILE: predicted.read.file}
        if self._plan.key_field is None or predicted.read.instance is None:
            return {}
        return {self._plan.key_field: predicted.read.instance.key}

    def _add_error(self, predicted: Predicted, problem: str) -> None:
        read = predicted.read
        document: dict[str, Any] = {FILE: read.file}
        line = line_of(read, plan=self._plan)
        if line is not None:
            document["line"] = line
        if read.record is not None:
            document["record"] = read.record
        document["error"] = problem
        self._files[ERRORS].write(json.dumps(document) + "\n")
        self.num_errors += 1

    def close(self) -> dict[str, Path]:
        """Closes the files, and returns their paths by kind. Idempotent."""
        self._opened.close()
        return self._paths

    def summary(self, plan: Plan) -> ShardDone:
        """Returns what says that the files are complete."""
        return ShardDone(
            digest=plan.digest,
            num_predictions=self.num_predictions,
            num_errors=self.num_errors,
            columns=self._columns,
        )


def _columns(outputs: dict[str, np.ndarray], names: Sequence[str]) -> list[str]:
    found: list[str] = []
    for name in names:
        size = outputs[name].size
        found += [name] if outputs[name].ndim == 0 or size == 1 else [f"{name}_{index}" for index in range(size)]
    return found


def _csv_line(values: Sequence[object]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(values)
    return text.getvalue()
