"""Writes `expected.json`: what the scripts print before they are migrated, in TensorFlow on two CPU devices.

    uv venv /tmp/tf --python 3.11 && uv pip install --python /tmp/tf/bin/python tensorflow-cpu tf_keras tensorboard
    TF_USE_LEGACY_KERAS=1 /tmp/tf/bin/python tests/migration/run_tensorflow.py

With names of scripts it makes theirs anew. With the path of one, and its arguments, it runs that script alone.
"""

import json
import os
import runpy
import subprocess
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent / "scripts"
EXPECTED = Path(__file__).with_name("expected.json")
NEEDING_SERVERS = ("parameter_server_fit", "parameter_server_loop")
RANDOM = ("dcgan",)


def run(script, arguments):
    """Has the strategies find two devices of the CPU, and a TPU be those."""
    import tensorflow as tf

    devices = [tf.config.LogicalDeviceConfiguration()] * 2
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], devices)
    mirrored = tf.distribute.MirroredStrategy
    tf.distribute.MirroredStrategy = lambda **options: mirrored(
        devices=["/cpu:0", "/cpu:1"], cross_device_ops=tf.distribute.ReductionToOneDevice()
    )
    tf.distribute.TPUStrategy = lambda resolver: tf.distribute.MirroredStrategy()
    tf.distribute.cluster_resolver.TPUClusterResolver = lambda **options: None
    tf.config.experimental_connect_to_cluster = lambda resolver: None
    tf.tpu.experimental.initialize_tpu_system = lambda resolver: None
    sys.argv = [script, *arguments]
    runpy.run_path(script, run_name="__main__")


def arguments_of(name, folder):
    """Returns the arguments that a script is run with, as the tests do."""
    if name in ("multi_worker_keras", "multi_worker_loop"):
        return [str(folder)]
    if name == "trainer":
        write_records(folder)
        return ["--data", str(folder), "--job-dir", str(folder / "job")]
    return []


def write_records(folder):
    """Writes the trainer's data as TensorFlow writes it; the tests write the same by `lockstep.data`."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(31)
    pictures = rng.integers(0, 256, (40, 8, 8, 3)).astype("uint8")
    for shard in range(2):
        with tf.io.TFRecordWriter(str(folder / f"pictures-train-{shard:05d}-of-00002.tfrec")) as writer:
            for number in range(shard * 20, shard * 20 + 20):
                image = tf.train.Feature(
                    bytes_list=tf.train.BytesList(value=[tf.io.encode_png(pictures[number]).numpy()])
                )
                label = tf.train.Feature(int64_list=tf.train.Int64List(value=[number % 3]))
                features = tf.train.Features(feature={"image": image, "label": label})
                writer.write(tf.train.Example(features=features).SerializeToString())


def main():
    if len(sys.argv) > 1 and sys.argv[1].endswith(".py"):
        run(sys.argv[1], sys.argv[2:])
        return
    expected = json.loads(EXPECTED.read_text("utf-8")) if EXPECTED.exists() else {}
    chosen = sys.argv[1:]
    has_failed = False
    for script in sorted(FOLDER.glob("*.py")):
        if script.stem in (*NEEDING_SERVERS, *RANDOM) or (chosen and script.stem not in chosen):
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, __file__, str(script), *arguments_of(script.stem, Path(folder))]
            env = {**os.environ, "TF_USE_LEGACY_KERAS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": ""}
            done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            print(script.stem, "failed:", done.stderr[-1500:])
            has_failed = True
        else:
            expected[script.stem] = [line for line in done.stdout.splitlines() if line.strip()]
            print(script.stem, len(expected[script.stem]), "lines", flush=True)
            EXPECTED.write_text(json.dumps(expected, indent=1, sort_keys=True) + "\n", "utf-8")
    sys.exit(has_failed)


if __name__ == "__main__":
    main()
