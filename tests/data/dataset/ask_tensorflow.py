"""Writes what ``tf.data`` gives for each pipeline of `pipelines.py` beside it: ``python ask_tensorflow.py``.

It needs TensorFlow (``uv pip install tensorflow-cpu`` in an environment of its own), and nothing of Lockstep. The test
that compares needs the file alone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import tensorflow as tf

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import pipelines  # noqa: E402 - beside this file


def write_files(folder: Path) -> None:
    for name, count in pipelines.FILES.items():
        for suffix, compression in (("", ""), (".gz", "GZIP"), (".zlib", "ZLIB")):
            with tf.io.TFRecordWriter(str(folder / (name + suffix)), options=compression) as writer:
                for number in range(count):
                    writer.write(f"{name[0]}:{number}".encode())


def main() -> None:
    names = SimpleNamespace(
        Dataset=tf.data.Dataset,
        TFRecordDataset=tf.data.TFRecordDataset,
        AUTOTUNE=tf.data.AUTOTUNE,
        TensorSpec=tf.TensorSpec,
    )
    answers = {}
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for name, make in {**pipelines.PIPELINES, **pipelines.SHUFFLED}.items():
            answers[name] = pipelines.found(make(names, folder))
    lines = [f"  {json.dumps(name)}: {json.dumps(answer)}" for name, answer in answers.items()]
    document = ",\n".join([f'  "TensorFlow": "{tf.__version__}"', *lines])
    (HERE / "tensorflow_answers.json").write_text("{\n" + document + "\n}\n")


if __name__ == "__main__":
    main()
