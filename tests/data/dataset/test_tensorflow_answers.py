"""What each pipeline gives, beside what ``tf.data`` gave for it (`ask_tensorflow.py` wrote that down)."""

import gzip
import importlib.util
import json
import zlib
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

from lockstep import data
from lockstep.data import frame

HERE = Path(__file__).resolve().parent
ANSWERS = json.loads((HERE / "tensorflow_answers.json").read_text())
UNKNOWN = data.UNKNOWN_CARDINALITY

_loaded = importlib.util.spec_from_file_location("pipelines", HERE / "pipelines.py")
pipelines = importlib.util.module_from_spec(_loaded)
_loaded.loader.exec_module(pipelines)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    found = tmp_path_factory.mktemp("records")
    for name, count in pipelines.FILES.items():
        content = b"".join(frame(f"{name[0]}:{number}".encode()) for number in range(count))
        (found / name).write_bytes(content)
        (found / f"{name}.gz").write_bytes(gzip.compress(content))
        (found / f"{name}.zlib").write_bytes(zlib.compress(content))
    return found


def _found(make, folder):
    names = {name: getattr(data, name) for name in ("Dataset", "TFRecordDataset", "AUTOTUNE", "TensorSpec")}
    return json.loads(json.dumps(pipelines.found(make(SimpleNamespace(**names), str(folder)))))


def _fits(ours, theirs):
    """Whether a spec says what theirs says, or more."""
    if "dict" in theirs:
        return all(_fits(ours["dict"][key], value) for key, value in theirs["dict"].items())
    if "tuple" in theirs:
        return all(map(_fits, ours["tuple"], theirs["tuple"]))
    if ours["dtype"] != theirs["dtype"]:
        return False
    if theirs["shape"] is None or ours["shape"] is None:
        return True
    return len(ours["shape"]) == len(theirs["shape"]) and all(
        known in (None, size) for size, known in zip(ours["shape"], theirs["shape"], strict=True)
    )


@pytest.mark.parametrize("name", pipelines.PIPELINES)
def test_elements_are_those_of_tf_data(name, folder):
    ours, theirs = _found(pipelines.PIPELINES[name], folder), ANSWERS[name]
    assert ours["elements"] == theirs["elements"]
    assert ours["cardinality"] == theirs["cardinality"] or theirs["cardinality"] == UNKNOWN
    if theirs["elements"]:
        assert _fits(ours["spec"], theirs["spec"]), (ours["spec"], theirs["spec"])


@pytest.mark.parametrize("name", pipelines.SHUFFLED)
def test_shuffled_elements_are_those_of_tf_data(name, folder):
    ours, theirs = _found(pipelines.SHUFFLED[name], folder), ANSWERS[name]
    assert Counter(map(json.dumps, ours["elements"])) == Counter(map(json.dumps, theirs["elements"]))
    assert ours["cardinality"] == theirs["cardinality"] or theirs["cardinality"] == UNKNOWN


def test_every_pipeline_was_asked_of_tensorflow():
    assert ANSWERS.keys() - {"TensorFlow"} == pipelines.PIPELINES.keys() | pipelines.SHUFFLED.keys()
