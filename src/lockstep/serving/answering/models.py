"""Answers requests with a model that takes arrays."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Self, final

from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.answering import base
from lockstep.serving.answering.base import AbstractAnswering
from lockstep.serving.batch_counts import BatchCounts
from lockstep.serving.batch_policy import BatchPolicy
from lockstep.serving.batcher import Batcher
from lockstep.serving.lanes import Lanes
from lockstep.serving.protocols import inference, json_instances
from lockstep.serving.protocols.inference_paths import InferencePath
from lockstep.serving.protocols.json_instances import AT_ONCE_BYTES
from lockstep.serving.protocols.questions import Content, Question


@final
class ModelAnswering(AbstractAnswering):
    """Answers with a model; requests that wait share its runs.

    Args:
        model: the model, warmed up.
        policy: the policy of batching requests.
        lanes: parses requests and writes responses.
    """

    def __init__(self, model: AbstractModel, *, policy: BatchPolicy, lanes: Lanes) -> None:
        self._model = model
        size = min(policy.max_batch_size, model.max_batch_size)
        self._batcher = Batcher(model.predict, policy=replace(policy, max_batch_size=size))
        self._lanes = lanes

    @property
    def num_requests(self) -> int:
        """The number of requests so far."""
        return self._batcher.num_requests

    @property
    def batches(self) -> BatchCounts:
        """The counts of the runs of the model so far."""
        return self._batcher.batches

    @property
    def num_waiting(self) -> int:
        """The number of requests that wait for a run."""
        return self._batcher.num_waiting

    @property
    def is_stuck(self) -> bool:
        """Whether the current run of the model takes too long."""
        return self._batcher.run_s > base.MAX_RUN_S

    async def answer(self, body: bytes) -> Content:
        """Answers JSON instances; see `AbstractAnswering.answer`."""
        given = {"inputs": self._model.inputs, "output_names": self._model.output_names}
        question = json_instances.read_number_lists(body, **given) if len(body) <= AT_ONCE_BYTES else None
        if question is None:
            read = partial(json_instances.read_question, body, **given)
            question = await self._lanes.run(read, size_bytes=len(body))
        return await self._run(question)

    async def infer(self, body: bytes, path: InferencePath, *, header_length: bytes | None) -> Content:
        """Answers tensors; see `AbstractAnswering.infer`."""
        read = partial(
            inference.read_question,
            body,
            header_length=header_length,
            path=path,
            inputs=self._model.inputs,
            output_names=self._model.output_names,
        )
        return await self._run(await self._lanes.run(read, size_bytes=len(body)))

    def describe(self, path: InferencePath) -> Content:
        """Returns the metadata of the model; see `AbstractAnswering.describe`."""
        return inference.describe_model(path, inputs=self._model.inputs, outputs=self._model.outputs)

    async def _run(self, question: Question) -> Content:
        outputs = await self._batcher.submit(question.arrays)
        return await self._lanes.run(partial(question.write, outputs), size_bytes=question.size_of(outputs))

    async def __aenter__(self) -> Self:
        await self._batcher.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._batcher.__aexit__()
