"""``lockstep.batching`` of a version, as requests give it and responses return it."""

from __future__ import annotations

from typing import Annotated, Final, final

from pydantic import AfterValidator, Field

from lockstep.jobs.parsing.fields import AbstractDocument, Duration, Int32, duration_s, rule_error
from lockstep.service.api.forms import BatchingForm
from lockstep.service.store import Batching
from lockstep.serving.batch_policy import BatchPolicy

MAX_BATCH_SIZE: Final = 1024
MAX_LATENCY_S: Final = 1.0
DEFAULT: Final = BatchPolicy()


def _check_latency(value: str) -> str:
    if duration_s(value) > MAX_LATENCY_S:
        raise rule_error(allowed=f'"0s" to "{MAX_LATENCY_S:g}s"')
    return value


@final
class OwnBatching(AbstractDocument):
    """How each prediction server batches requests.

    Attributes:
        max_batch_size: the maximum number of instances in a batch.
        max_latency: how long the first request of a batch waits for others.
    """

    max_batch_size: Int32 = Field(default=DEFAULT.max_batch_size, ge=1, le=MAX_BATCH_SIZE)
    max_latency: Annotated[Duration, AfterValidator(_check_latency)] = f"{DEFAULT.max_latency_s:g}s"


def requested_batching(own: OwnBatching | None) -> Batching | None:
    """Returns what a request asks for; None if it asks for nothing."""
    if own is None:
        return None
    return Batching(max_batch_size=own.max_batch_size, max_latency_s=duration_s(own.max_latency))


def batching_form(batching: Batching) -> BatchingForm:
    """Returns it as a response has it."""
    return {"maxBatchSize": batching.max_batch_size, "maxLatency": f"{batching.max_latency_s:g}s"}
