"""Batch predictions: what is read, predicted and written."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from tests.serving.batch.conftest import Batch, expected

from lockstep.data.examples.example import encode_example
from lockstep.data.files.framing import frame
from lockstep.data.images import encode_image
from lockstep.errors import InvalidInputError, MissingInputError
from lockstep.serving.batch.options import InputFormat, OutputFormat
from lockstep.serving.batch.run import Place

VALUES = np.random.default_rng(0).normal(size=(101, 4)).astype("float32")


def _write_lines(path: Path, values: np.ndarray) -> None:
    path.write_text("".join(json.dumps(row.tolist()) + "\n" for row in values))


def test_predictions_of_json_lines_are_those_of_the_model(batch: Batch, numbers_model: keras.Model) -> None:
    _write_lines(batch.inputs / "a.jsonl", VALUES[:60])
    _write_lines(batch.inputs / "b.jsonl", VALUES[60:])
    batch.run(numbers_model, "*.jsonl", InputFormat.JSON)
    assert [path.name for path in batch.files()] == ["prediction.results-00000-of-00001"]
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES), atol=1e-6)
    assert batch.errors() == []


@pytest.mark.parametrize("shard_size_bytes", [40, 100, 1000, 5000])
def test_a_file_that_is_divided_gives_each_line_once_and_in_order(
    batch: Batch, numbers_model: keras.Model, shard_size_bytes: int
) -> None:
    _write_lines(batch.inputs / "a.jsonl", VALUES[:20])
    batch.run(numbers_model, "*", InputFormat.JSON, shard_size_bytes=shard_size_bytes)
    assert len(batch.files()) > 1 or shard_size_bytes == 5000
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES[:20]), atol=1e-6)


def test_replicas_divide_the_shards(batch: Batch, numbers_model: keras.Model) -> None:
    _write_lines(batch.inputs / "a.jsonl", VALUES)

    def run(index: int, **more: Any) -> None:
        batch.run(
            numbers_model, "*", InputFormat.JSON, shard_size_bytes=800, place=Place(index=index, num_replicas=3), **more
        )

    others = iter((1, 2))
    waited: list[float] = []

    def sleep(seconds: float) -> None:  # while the leading replica waits, the others run
        waited.append(seconds)
        run(next(others))

    run(0, sleep=sleep)
    assert len(waited) == 2
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES), atol=1e-6)


def test_what_cannot_be_predicted_is_in_the_errors_with_its_line(batch: Batch, numbers_model: keras.Model) -> None:
    lines = [json.dumps(row.tolist()) for row in VALUES[:40]]
    wrong = {3: "{", 11: "[1, 2]", 12: '["x", 1, 2, 3]', 20: "[NaN, 1, 2, 3]", 33: "[1e60, 0, 0, 0]"}
    for index, text in wrong.items():
        lines[index] = text
    lines.insert(25, "")  # not an instance
    path = batch.inputs / "a.jsonl"
    path.write_text("\n".join(lines))  # no line break at the end
    batch.run(numbers_model, "*", InputFormat.JSON, shard_size_bytes=500)
    good = [index for index in range(40) if index not in wrong]
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES[good]), atol=1e-6)
    errors = batch.errors()
    assert [(error["file"], error["line"]) for error in errors] == [
        (str(path), index + 1 + (index >= 25)) for index in wrong
    ]
    assert "not JSON" in errors[0]["error"]
    assert errors[1]["error"].startswith("the instance: shape")


def test_a_prediction_that_is_not_finite_is_an_error(batch: Batch) -> None:
    x = keras.Input((), name="x")
    model = keras.Model(x, keras.ops.log(x))
    (batch.inputs / "a").write_text("1\n-1\n2\n")
    batch.run(model, "a", InputFormat.JSON)
    np.testing.assert_allclose(batch.predictions(), np.log([1, 2]), atol=1e-6)
    assert [error["line"] for error in batch.errors()] == [2]


def test_compressed_lines_and_several_inputs(batch: Batch, two_inputs_model: keras.Model) -> None:
    with gzip.open(batch.inputs / "a.gz", "wt") as file:
        file.writelines(json.dumps({"id": f"n{n}", "a": n, "b": 1}) + "\n" for n in range(20))
    batch.run(two_inputs_model, "a.gz", InputFormat.JSON, key_field="id")
    assert batch.predictions()[3] == {"id": "n3", "prediction": {"difference": 2.0, "sum": 4.0}}
    assert len(batch.predictions()) == 20


def test_a_compressed_file_that_is_cut_off_gives_what_is_whole(batch: Batch, numbers_model: keras.Model) -> None:
    whole = gzip.compress("".join(json.dumps(row.tolist()) + "\n" for row in VALUES).encode())
    (batch.inputs / "a.gz").write_bytes(whole[: len(whole) // 2])
    batch.run(numbers_model, "a.gz", InputFormat.JSON)
    found = batch.predictions()
    assert 0 < len(found) < 101
    np.testing.assert_allclose(found, expected(numbers_model, VALUES[: len(found)]), atol=1e-6)
    assert "decompressed" in batch.errors()[-1]["error"]


@pytest.mark.parametrize("shard_size_bytes", [None, 30])
def test_csv_with_a_header_and_csv_out(
    batch: Batch, two_inputs_model: keras.Model, shard_size_bytes: int | None
) -> None:
    rows = "".join(f"{n},k{n},{2 * n}\n" for n in range(9))
    (batch.inputs / "a.csv").write_text(f"b,key,a\n{rows}x,k9,1\n")
    batch.run(
        two_inputs_model,
        "*.csv",
        InputFormat.CSV,
        key_field="key",
        output_format=OutputFormat.CSV,
        shard_size_bytes=shard_size_bytes,
    )
    assert batch.lines() == [f"k{n},{float(n)},{float(3 * n)}" for n in range(9)]
    assert (batch.output / "prediction.keys.csv").read_text() == "key,difference,sum\n"
    [error] = batch.errors()
    assert (error["line"], error["error"]) == (11, "b is not a finite number; received 'x'")


@pytest.mark.parametrize("header", ["", "p,q,r,s\n"])
def test_csv_rows_are_the_values_of_the_only_input(batch: Batch, numbers_model: keras.Model, header: str) -> None:
    rows = "".join(",".join(map(str, row.tolist())) + "\r\n" for row in VALUES[:10])
    (batch.inputs / "a.csv").write_text(header + rows + "1,2\n")
    batch.run(numbers_model, "*.csv", InputFormat.CSV, output_format=OutputFormat.CSV)
    found = np.array([line.split(",") for line in batch.lines()], "float64")
    np.testing.assert_allclose(found, expected(numbers_model, VALUES[:10]), atol=1e-6)
    assert (batch.output / "prediction.keys.csv").read_text() == "output_0,output_1,output_2\n"
    assert len(batch.errors()) == 1


def _frames(values: np.ndarray) -> list[bytes]:
    return [frame(encode_example({"x": row, "label": 1})) for row in values]


def test_records_are_read_by_feature(batch: Batch, numbers_model: keras.Model) -> None:
    (batch.inputs / "a.tfrecord").write_bytes(b"".join(_frames(VALUES)))
    batch.run(numbers_model, "a.tfrecord", InputFormat.TF_RECORD)
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES), atol=1e-6)


def test_compressed_records_end_where_they_are_damaged(batch: Batch, numbers_model: keras.Model) -> None:
    frames = _frames(VALUES[:20])
    frames[15] = frames[15][:-1] + bytes([frames[15][-1] ^ 1])
    (batch.inputs / "a.gz").write_bytes(gzip.compress(b"".join(frames)))
    batch.run(numbers_model, "a.gz", InputFormat.TF_RECORD_GZIP)
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES[:15]), atol=1e-6)
    assert [error["record"] for error in batch.errors()] == [15]


def test_a_damaged_record_and_one_without_the_feature_are_errors(batch: Batch, numbers_model: keras.Model) -> None:
    frames = _frames(VALUES[:30])
    frames[7] = frames[7][:-1] + bytes([frames[7][-1] ^ 1])
    frames[9] = frame(encode_example({"y": 1, "z": 2}))
    frames[10] = frame(b"\xff\xff no example")
    path = batch.inputs / "a.tfrecord"
    path.write_bytes(b"".join(frames) + frames[0][:9])  # cut off
    batch.run(numbers_model, "a.tfrecord", InputFormat.TF_RECORD)
    good = [index for index in range(30) if index not in (7, 9, 10)]
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES[good]), atol=1e-6)
    errors = batch.errors()
    assert [error["record"] for error in errors] == [7, 9, 10, 30]
    assert {error["file"] for error in errors} == {str(path)}
    assert "has no feature x" in errors[1]["error"]


def test_image_files_are_instances(batch: Batch, image_model: keras.Model) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (70, 6, 4), np.uint8)
    for index, image in enumerate(pixels):
        (batch.inputs / f"{index:02d}.png").write_bytes(encode_image(image[..., None], codec="png"))
    (batch.inputs / "99.png").write_bytes(b"no image")
    batch.run(image_model, "*.png", InputFormat.IMAGE_FILES)
    found = batch.predictions()
    assert [line["file"] for line in found] == [str(batch.inputs / f"{index:02d}.png") for index in range(70)]
    np.testing.assert_allclose([line["prediction"] for line in found], expected(image_model, pixels), atol=1e-6)
    [error] = batch.errors()
    assert error["file"] == str(batch.inputs / "99.png")


def test_complete_shards_are_not_predicted_again(batch: Batch, numbers_model: keras.Model) -> None:
    _write_lines(batch.inputs / "a", VALUES[:20])
    batch.run(numbers_model, "a", InputFormat.JSON, shard_size_bytes=400)
    before = {path: path.stat().st_mtime_ns for path in batch.files()}
    lost = batch.files()[1]
    lost.unlink()
    [marker] = batch.output.glob("prediction.state/*/00001.json")
    marker.unlink()
    batch.run(numbers_model, "a", InputFormat.JSON, shard_size_bytes=400, run_id="another")
    after = {path: path.stat().st_mtime_ns for path in batch.files()}
    assert [path for path in before if before[path] != after[path]] == [lost]
    np.testing.assert_allclose(batch.predictions(), expected(numbers_model, VALUES[:20]), atol=1e-6)


@pytest.mark.parametrize("changed", ["model", "inputs", "format"])
def test_results_of_something_else_are_not_taken(
    batch: Batch, numbers_model: keras.Model, image_model: keras.Model, changed: str
) -> None:
    _write_lines(batch.inputs / "a", VALUES[:20])
    batch.run(numbers_model, "a", InputFormat.JSON)
    if changed == "inputs":
        _write_lines(batch.inputs / "a", VALUES[20:40])
    output_format = OutputFormat.CSV if changed == "format" else OutputFormat.JSON
    model = image_model if changed == "model" else numbers_model
    with pytest.raises(InvalidInputError, match="results of other inputs or of another model"):
        batch.run(model, "a", InputFormat.JSON, run_id="another", output_format=output_format)


def test_a_restarted_job_keeps_the_input_that_it_began_with(batch: Batch, numbers_model: keras.Model) -> None:
    _write_lines(batch.inputs / "a", VALUES[:20])
    batch.run(numbers_model, "*", InputFormat.JSON)
    _write_lines(batch.inputs / "b", VALUES[20:40])
    batch.run(numbers_model, "*", InputFormat.JSON)
    assert len(batch.predictions()) == 20


def test_paths_that_match_nothing_are_refused_together(batch: Batch, numbers_model: keras.Model) -> None:
    _write_lines(batch.inputs / "a", VALUES[:2])
    paths = (str(batch.inputs / "a"), str(batch.inputs / "b*"))
    batch.run(numbers_model, "", InputFormat.JSON, input_paths=paths)
    assert len(batch.predictions()) == 2
    with pytest.raises(MissingInputError, match="no file matches the input paths"):
        batch.run(numbers_model, "c*", InputFormat.JSON, run_id="another")


def test_files_without_instances_give_empty_files(batch: Batch, numbers_model: keras.Model) -> None:
    (batch.inputs / "a").touch()
    batch.run(numbers_model, "a", InputFormat.JSON)
    assert (len(batch.files()), batch.lines(), len(batch.files("errors_stats"))) == (1, [], 1)
