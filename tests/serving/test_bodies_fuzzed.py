"""Bodies that nobody thought of: a prediction for each instance, or one line that says what is wrong, never a 500."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, final

import numpy as np
import orjson
import pytest
from hypothesis import example, given, settings
from tests.serving.asgi import Poster
from tests.serving.bodies import bodies, instances_in

from lockstep.serving.abstract_model import AbstractModel
from lockstep.serving.answering import Served
from lockstep.serving.app import AppOptions, PredictApp
from lockstep.serving.batcher import BatchPolicy
from lockstep.serving.instances import Arrays, InputSpec, OutputSpec
from lockstep.serving.routine import Routine

TOKEN = "a-token"
OPTIONS = AppOptions(token=TOKEN, policy=BatchPolicy(max_latency_s=0))
QUICK = settings(max_examples=250, deadline=None, derandomize=True, database=None)


@final
class Sums(AbstractModel):
    """A model whose prediction is the sum of all values of an instance."""

    def __init__(self, *inputs: InputSpec) -> None:
        self._inputs = inputs

    @property
    def inputs(self) -> tuple[InputSpec, ...]:
        return self._inputs

    @property
    def output_names(self) -> tuple[str, ...]:
        return ("sum",)

    @property
    def outputs(self) -> tuple[OutputSpec, ...]:
        return (OutputSpec(name="sum", shape=(), dtype="float64"),)

    @property
    def max_batch_size(self) -> int:
        return 8

    def warm_up(self) -> None:
        return None

    def predict(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        for spec in self._inputs:
            array = arrays[spec.name]
            assert array.dtype == spec.dtype, spec
            assert array.ndim == len(spec.shape) + 1, spec
        values = [array.reshape(len(array), -1).astype("float64").sum(axis=1) for array in arrays.values()]
        return {"sum": np.sum(values, axis=0)}


class Names:
    """A custom prediction routine that takes anything, and answers with texts and with the names of other types."""

    def predict(self, instances: list[Any], **parameters: Any) -> list[str]:
        return [each if isinstance(each, str) else type(each).__name__ for each in instances]


ROW = InputSpec(name="x", shape=(3,), dtype="float32")
WORDS = InputSpec(name="words", shape=(None,), dtype="int32")
RATE = InputSpec(name="rate", shape=(), dtype="float32")
FLAG = InputSpec(name="flag", shape=(1,), dtype="bool")
IMAGE = InputSpec(name="image", shape=(2, 2, 3), dtype="uint8", takes_pixels=True)
ANY_IMAGE = InputSpec(name="image", shape=(None, None, 3), dtype="uint8", takes_pixels=True)
LONG = InputSpec(name="x", shape=(2,), dtype="int64")
SERVED: dict[str, tuple[Callable[[], Served], str]] = {
    "one_input": (lambda: Sums(ROW), "[1,2.5,-3]"),
    "any_length": (lambda: Sums(WORDS), "[1,2]"),
    "several_inputs": (lambda: Sums(RATE, WORDS, FLAG), '{"rate":0.5,"words":[1,2],"flag":[true]}'),
    "image": (lambda: Sums(IMAGE), "[[[0,1,2],[3,4,255]],[[0,1,2],[3,4,255]]]"),
    "image_of_any_size": (lambda: Sums(ANY_IMAGE), "[[[0,1,255]]]"),
    "long_integers": (lambda: Sums(LONG), "[9007199254740993,-1]"),
    "routine": (lambda: Routine("trainer.Names", Names()), '"text"'),
}
"""What answers, and the JSON of an instance that it takes."""


@pytest.mark.parametrize("name", SERVED)
@pytest.mark.heavy
def test_a_body_is_answered_by_predictions_or_by_what_is_wrong_with_it(name: str) -> None:
    make, fitting = SERVED[name]
    statuses: set[int] = set()
    with Poster(PredictApp(make(), options=OPTIONS), path="/predict", token=TOKEN) as poster:

        @QUICK
        @example(f'{{"instances":[{fitting}]}}'.encode())
        @given(bodies(fitting))
        def check(body: bytes) -> None:
            status, answer = poster.post(body)
            document = json.loads(answer)
            statuses.add(status)
            instances = instances_in(body)
            if status == 200:
                assert list(document) == ["predictions"]
                assert len(document["predictions"]) == len(orjson.loads(body)["instances"])
                return
            assert status in (400, 413), (status, document)
            assert list(document) == ["error"]
            assert "\n" not in document["error"]
            assert len(document["error"]) < 1500
            if instances:
                assert "instances[" in document["error"], "it says which instance"

        check()
    assert statuses >= {200, 400}


DEPTHS = [64, 65, 254, 255, 900, 960, 985, 1000, 1015, 1021, 1022, 1023, 1024, 50_000]


@pytest.mark.parametrize("name", SERVED)
def test_a_body_that_is_nested_deeply_is_answered_too(name: str) -> None:
    """Hypothesis raises the limit of Python's recursion, so these bodies are sent without it."""
    make, fitting = SERVED[name]
    with Poster(PredictApp(make(), options=OPTIONS), path="/predict", token=TOKEN) as poster:
        for depth in DEPTHS:
            for start, end in (
                ("[", "]"),
                ('{"x":', "}"),
                ('{"rate":', "}"),
                ('{"image_bytes":', "}"),
                ('{"b64":', "}"),
            ):
                value = start * depth + "1" + end * depth
                for body in (
                    f'{{"instances":[{value}]}}',
                    f'{{"instances":{value}}}',
                    f'{{"instances":[{{"rate":{value},"words":[1],"flag":[true]}}]}}',
                    f'{{"instances":[{fitting}],"parameters":{value}}}',
                    value,
                ):
                    status, answer = poster.post(body.encode())
                    assert status in (200, 400), (depth, body[:60], answer)
                    assert status == 200 or len(json.loads(answer)["error"]) < 1500
