"""Custom prediction routines: what they return is answered, and what they do wrong is said with their name."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from lockstep.errors import InvalidInputError, LockstepError, ModelError, OverloadedError, RoutineError
from lockstep.serving.answering import RoutineAnswering, base
from lockstep.serving.lanes import Lanes
from lockstep.serving.routine import Routine

CODE = """
class Scaled:
    def __init__(self, factor):
        self.factor = factor

    @classmethod
    def from_path(cls, model_dir):
        with open(model_dir + "/weights/factor.txt") as file:
            return cls(float(file.read()))

    def predict(self, instances, **kwargs):
        return [self.factor * each + kwargs.get("offset", 0) for each in instances]

class NoPath:
    pass

class NoPredict:
    @classmethod
    def from_path(cls, model_dir):
        return cls()

class Exits:
    @classmethod
    def from_path(cls, model_dir):
        raise SystemExit(3)

class ManyThreads(NoPredict):
    max_concurrent_calls = 0
    def predict(self, instances):
        return instances
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "a_routine.py").write_text(CODE)
    (tmp_path / "broken_routine.py").write_text("import a_package_that_nobody_has")
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "factor.txt").write_text("2.5")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("a_routine", "broken_routine"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


class Calls:
    """A routine that does what a test says."""

    def __init__(self, function: Callable[..., Any], *, threads: int = 1) -> None:
        self.max_concurrent_calls = threads
        self.predict = function


def answer(function: Callable[..., Any], body: dict[str, Any], *, threads: int = 1) -> Any:
    routine = Routine("trainer.Predictor", Calls(function, threads=threads))
    instances = body.pop("instances")
    return json.loads(routine.predict(instances, body))["predictions"]


def test_a_class_of_a_package_gets_the_files_the_instances_and_the_other_keys(package: Path) -> None:
    routine = Routine.load("a_routine.Scaled", folder=package)
    assert routine.num_threads == 1
    assert json.loads(routine.predict([1, 2], {})) == {"predictions": [2.5, 5.0]}
    assert json.loads(routine.predict([1], {"offset": 1})) == {"predictions": [3.5]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a_routine.NoPath", "there is no classmethod from_path(model_dir)"),
        ("a_routine.Nothing", "there is no Nothing in a_routine"),
        ("a_routine.NoPredict", "has no predict(instances, **kwargs)"),
        ("a_routine.Exits", "from_path failed: SystemExit: 3"),
        ("a_routine.ManyThreads", "max_concurrent_calls; received 0; allowed: a whole number from 1 to 64"),
        ("no_such_module.Predictor", "module no_such_module cannot be imported: ModuleNotFoundError"),
        ("broken_routine.Predictor", "No module named 'a_package_that_nobody_has'; add it to the package"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_one_line(package: Path, name: str, message: str) -> None:
    with pytest.raises(ModelError) as caught:
        Routine.load(name, folder=package)
    assert str(caught.value).startswith(f"predictionClass {name}")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_from_path_that_fails_shows_its_traceback(package: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (package / "weights" / "factor.txt").unlink()
    with pytest.raises(ModelError, match="from_path failed: FileNotFoundError"):
        Routine.load("a_routine.Scaled", folder=package)
    assert "a_routine.py" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("returned", "expected"),
    [
        ([1, "two"], [1, "two"]),
        ((None, True), [None, True]),
        (np.array([[1, 2], [3, 4]], "uint8"), [[1, 2], [3, 4]]),
        (np.array([0.5, np.nan], "float16"), [0.5, "NaN"]),
        (jnp.array([0.5, 2.0], jnp.bfloat16), [0.5, 2.0]),
        (np.array(["a", "b"]), ["a", "b"]),
        ([float("inf"), {"x": [-float("inf"), np.float32("nan")]}], ["Infinity", {"x": ["-Infinity", "NaN"]}]),
        ([{"scores": np.array([0.25, 0.75]), "label": np.int64(1)}, []], [{"scores": [0.25, 0.75], "label": 1}, []]),
        ([np.array(0.5), np.bool_(1)], [0.5, True]),
        ([jnp.array([1.0]), np.array(["a"], object)], [[1.0], ["a"]]),
    ],
)
def test_what_it_returns_is_written_as_json(returned: Any, expected: Any) -> None:
    assert answer(lambda instances: returned, {"instances": [0, 0]}) == expected


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ([1], "returned another number of predictions; received 1; allowed: 2, one for each instance"),
        (np.zeros((3, 2)), "returned another number of predictions; received 3"),
        (np.array(1.0), "returned no list of predictions; received 'ndarray'"),
        (None, "returned no list of predictions; received 'NoneType'"),
        ("ab", "returned no list of predictions; received 'str'"),
        ({"a": 1, "b": 2}, "returned no list of predictions; received 'dict'"),
        ([object(), 1], "returned what JSON cannot say"),
        ([{1: 2}, 1], "returned what JSON cannot say"),
        ([b"bytes", 1], "returned what JSON cannot say"),
    ],
)
def test_what_is_no_list_of_predictions_is_an_error_with_its_name(returned: Any, message: str) -> None:
    with pytest.raises(RoutineError) as caught:
        answer(lambda instances: returned, {"instances": [0, 0]})
    assert str(caught.value).startswith(f"predictionClass trainer.Predictor {message}")
    assert caught.value.http_status == 500


def test_predictions_that_contain_themselves_are_an_error() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RoutineError, match="returned what JSON cannot say"):
        answer(lambda instances: endless, {"instances": [0]})


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ValueError("two\nlines"), InvalidInputError),
        (InvalidInputError("of its own"), InvalidInputError),
        (KeyError("x"), RoutineError),
        (SystemExit(1), RoutineError),
        (KeyboardInterrupt(), RoutineError),
    ],
)
def test_its_exceptions_are_one_line_and_a_traceback(
    error: BaseException, kind: type[LockstepError], capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(instances: list[object]) -> None:
        raise error

    with pytest.raises(kind) as caught:
        answer(fails, {"instances": [0]})
    assert "\n" not in str(caught.value)
    if isinstance(error, LockstepError):
        assert str(caught.value) == "of its own"
        return
    assert str(caught.value).startswith(f"predictionClass trainer.Predictor failed: {type(error).__name__}")
    shown = capsys.readouterr().err
    assert "in fails" in shown
    assert "serving/routine.py" not in shown


def test_a_key_that_it_does_not_take_is_the_callers_fault() -> None:
    with pytest.raises(InvalidInputError, match="got an unexpected keyword argument 'x'; received \\['x'\\]"):
        answer(lambda instances: instances, {"instances": [0], "x": 1})


@asynccontextmanager
async def answering(function: Callable[..., Any], *, threads: int = 1, waiting: int = 8) -> AsyncIterator[Any]:
    routine = Routine("trainer.Predictor", Calls(function, threads=threads))
    async with Lanes() as lanes, RoutineAnswering(routine, max_waiting=waiting, lanes=lanes) as made:
        yield made


BODY = b'{"instances": [1]}'


@pytest.mark.parametrize("threads", [1, 3])
def test_as_many_calls_run_at_once_as_it_says(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    state = {"running": 0, "most": 0}
    lock, release = threading.Lock(), threading.Event()

    def predict(instances: list[object]) -> list[object]:
        with lock:
            state["running"] += 1
            state["most"] = max(state["most"], state["running"])
        release.wait(20)
        with lock:
            state["running"] -= 1
        return instances

    async def check() -> None:
        async with answering(predict, threads=threads) as made:
            tasks = [asyncio.create_task(made.answer(BODY)) for _ in range(6)]
            async with asyncio.timeout(20):
                while state["running"] < threads or made.num_waiting > 6 - threads:
                    await asyncio.sleep(0.001)
            assert not made.is_stuck
            monkeypatch.setattr(base, "MAX_RUN_S", 0.0)
            assert made.is_stuck
            release.set()
            assert [answer.body for answer in await asyncio.gather(*tasks)] == [b'{"predictions":[1]}'] * 6
            assert (made.is_stuck, made.num_requests) == (False, 6)

    asyncio.run(check())
    assert state["most"] == threads


def test_what_waits_in_vain_is_rejected_and_what_nobody_waits_for_does_not_run() -> None:
    begun, release = threading.Event(), threading.Event()
    seen: list[object] = []

    def predict(instances: list[object]) -> list[object]:
        begun.set()
        release.wait(20)
        seen.append(instances[0])
        return instances

    async def check() -> None:
        async with answering(predict, waiting=1) as made:
            first = asyncio.create_task(made.answer(b'{"instances": ["first"]}'))
            async with asyncio.timeout(20):
                while not begun.is_set():
                    await asyncio.sleep(0.001)
            second = asyncio.create_task(made.answer(b'{"instances": ["second"]}'))
            await asyncio.sleep(0)
            with pytest.raises(OverloadedError, match="1 waiting"):
                await made.answer(BODY)
            second.cancel()
            with pytest.raises(asyncio.CancelledError):
                await second
            third = asyncio.create_task(made.answer(b'{"instances": ["third"]}'))  # takes the place of the second
            await asyncio.sleep(0)
            release.set()
            await asyncio.gather(first, third)

    asyncio.run(check())
    assert seen == ["first", "third"]


@pytest.mark.parametrize("body", [b"{", b"[]", b"{}", b'{"instances": []}', b'{"instances": 1}'])
def test_a_body_without_instances_is_refused(body: bytes) -> None:
    async def check() -> None:
        async with answering(lambda instances: instances) as made:
            with pytest.raises(InvalidInputError):
                await made.answer(body)

    asyncio.run(check())
