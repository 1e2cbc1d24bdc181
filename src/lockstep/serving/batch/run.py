"""Runs a replica of a batch prediction: predicts its shards. The leading one waits for those of the others."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar, final

from lockstep.errors import UnavailableError
from lockstep.heartbeat import report_progress
from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.batch.options import BatchOptions, OutputFormat
from lockstep.serving.batch.outputs import OutputFolder, ShardDone, ShardFiles
from lockstep.serving.batch.plan import Plan, list_inputs, make_plan
from lockstep.serving.batch.predicting import batches, predict, read_arrays
from lockstep.serving.batch.reading import read_shard

PLAN_TIMEOUT_S: Final = 1800.0
"""How long the other replicas wait for the leading one to list the input, in seconds."""
POLL_S: Final = 1.0
MAX_POLL_S: Final = 8.0
"""The longest pause between two lists of the shards that are complete, in seconds."""
NUM_AHEAD: Final = 2
"""How many batches are read while one is predicted."""

PREDICTIONS: Final = "predictions"
ERRORS: Final = "errors"
"""The metrics of a replica's heartbeats: how many predictions it has made, and how many instances have none."""

logger = logging.getLogger(__name__)

Item = TypeVar("Item")


@final
@dataclass(frozen=True, kw_only=True)
class Place:
    """A replica's place in its job.

    Attributes:
        index: the replica's number; number 0 leads.
        num_replicas: the number of replicas.
    """

    index: int = 0
    num_replicas: int = 1


@final
class BatchRun:
    """One replica's part of a batch prediction.

    Args:
        options: what the job reads and writes.
        model: the loaded model.
        model_sha256: the SHA-256 digest of the model's file, in hexadecimal.
        place: the replica's place in the job.
        folder: a local folder for temporary files.
        sleep: waits for some seconds.
    """

    def __init__(
        self,
        options: BatchOptions,
        *,
        model: AbstractModel,
        model_sha256: str,
        place: Place,
        folder: Path,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._options = options
        self._model = model
        self._model_sha256 = model_sha256
        self._place = place
        self._folder = folder
        self._sleep = sleep
        self._output = OutputFolder(options.output_path, run_id=options.run_id)
        self._num_shards = self._num_predictions = self._num_errors = 0

    def run(self) -> None:
        """Predicts the replica's shards. The leading replica returns when the shards of all replicas are complete.

        Raises:
            MissingInputError: no input path matches a file.
            InvalidInputError: the output folder has results of other inputs or of another model.
            ModelError: the machine does not have the memory for a batch.
            StorageError: a bucket could not be read or written.
            UnavailableError: the leading replica did not list the input in time.
        """
        plan = self._lead() if self._place.index == 0 else self._wait_for_plan()
        complete = set(self._output.numbers_done(plan))
        with ThreadPoolExecutor(1, "lockstep-read") as executor:
            for shard in range(self._place.index, len(plan.shards), self._place.num_replicas):
                done = self._output.read_done(plan, shard=shard) if shard in complete else None
                self._count(done or self._predict_shard(plan, shard, executor))
        if self._place.index == 0:
            self._wait_for_others(plan)
            if plan.output_format is OutputFormat.CSV:
                self._output.write_columns(plan)
        logger.info("%s predictions, %s errors", f"{self._num_predictions:,}", f"{self._num_errors:,}")

    def _lead(self) -> Plan:
        plan = self._output.read_plan()
        if plan is not None:  # of an earlier attempt: the files that were there then are the job's input
            return plan
        files, unmatched = list_inputs(self._options)
        for path in unmatched:
            logger.warning("no file matches %s", path)
        plan = make_plan(self._options, files=files, model_sha256=self._model_sha256)
        self._output.write_plan(plan)
        total_bytes = sum(file.size_bytes for file in files)
        logger.info("%s files, %s bytes, %s shards", f"{len(files):,}", f"{total_bytes:,}", f"{len(plan.shards):,}")
        return plan

    def _wait_for_plan(self) -> Plan:
        deadline = time.monotonic() + PLAN_TIMEOUT_S
        while (plan := self._output.read_plan()) is None:
            if time.monotonic() > deadline:
                raise UnavailableError(f"the leading replica did not list the input within {PLAN_TIMEOUT_S:.0f} s")
            report_progress()
            self._sleep(POLL_S)
        return plan

    def _wait_for_others(self, plan: Plan) -> None:
        """Waits until all shards are complete. The gang supervisor ends the job if a replica with one of them dies."""
        pause_s = POLL_S
        while len(self._output.numbers_done(plan)) < len(plan.shards):
            self._report()
            self._sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_POLL_S)

    def _predict_shard(self, plan: Plan, shard: int, executor: ThreadPoolExecutor) -> ShardDone:
        model = self._model
        instances = read_shard(plan, shard=shard, specs=model.inputs)
        prepared = (
            (batch, *read_arrays(batch, model=model)) for batch in batches(instances, size=self._options.batch_size)
        )
        with ShardFiles(plan, output_names=model.output_names, folder=self._folder) as files:
            for batch, groups, problems in _read_ahead(prepared, executor=executor):
                files.add(predict(batch, model=model, groups=groups, problems=problems))
                self._report(files)
            return self._output.write_shard(plan, shard=shard, files=files)

    def _count(self, done: ShardDone) -> None:
        self._num_shards += 1
        self._num_predictions += done.num_predictions
        self._num_errors += done.num_errors
        self._report()

    def _report(self, files: ShardFiles | None = None) -> None:
        num_predictions, num_errors = self._num_predictions, self._num_errors
        if files is not None:
            num_predictions += files.num_predictions
            num_errors += files.num_errors
        report_progress(
            step=self._num_shards,
            num_examples=num_predictions + num_errors,
            **{PREDICTIONS: num_predictions, ERRORS: num_errors},
        )


_END: Final = object()


def _read_ahead(items: Iterator[Item], *, executor: ThreadPoolExecutor) -> Iterator[Item]:
    """Yields items, the next of which are made in the executor's only thread meanwhile."""
    waiting = deque(executor.submit(next, items, _END) for _ in range(NUM_AHEAD))
    try:
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(executor.submit(next, items, _END))
            yield item  # pyright: ignore[reportReturnType] # _END, the only other value, ends the loop
    finally:
        for future in waiting:
            if not future.cancel():
                with contextlib.suppress(Exception):  # an earlier error is on its way
                    future.result()
