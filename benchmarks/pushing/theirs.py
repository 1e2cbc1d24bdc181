"""TensorFlow's side, as its guide writes custom loops: ``python -m pushing.theirs ORDER``.

One script for all roles, told by TF_CONFIG; needs TensorFlow alone. What makes it fast: one ``tf.function`` for
reading, gradients and updates; batches that lie ready in the workers; fused kernels for updates, which run where the
variable is; the table's gradient an ``IndexedSlices``; several steps in one closure, where asked for; TensorFlow's
own numbers of threads. The order's ``rows`` are ``once``: each of the table that a batch uses, found by
``tf.unique``, as ``embedding_lookup_sparse`` does; or ``each``: one for each id, as ``embedding_lookup`` does.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["GRPC_FAIL_FAST"] = "use_caller"  # as the guide has it for workers and servers

import numpy as np
import tensorflow as tf
from harness.protocol import read_order, say

from pushing.cases import (
    CASES,
    NUM_JUDGED,
    ROW_LEARNING_RATE,
    TABLE_COLUMNS,
    Case,
    initial_dense,
    inputs_shape,
    labels_dtype,
    load,
)
from pushing.measure import timed

BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-7


def serve(resolver: Any) -> None:
    """Runs a worker or a parameter server until it is killed."""
    config = tf.compat.v1.ConfigProto()
    num_workers = len(resolver.cluster_spec().as_dict()["worker"])
    if resolver.task_type == "worker" and multiprocessing.cpu_count() < num_workers + 1:
        config.inter_op_parallelism_threads = num_workers + 1  # the guide: else workers may wait for one another
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
        config=config,
        start=True,
    )
    server.join()


class Dense:
    """Layers, the last one without activation; with what Adam keeps beside them."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.variables = [tf.Variable(tf.constant(value)) for layer in initial_dense(case) for value in layer]
        self._slots = []
        if case.optimizer == "adam":
            self._slots = [[tf.Variable(tf.zeros_like(value)) for _ in range(2)] for value in self.variables]
            self._iterations = tf.Variable(tf.constant(0, tf.int64))

    def __call__(self, values: Any, variables: Sequence[Any]) -> Any:
        for place in range(0, len(variables), 2):
            values = tf.matmul(values, variables[place]) + variables[place + 1]
            if place + 2 < len(variables):
                values = tf.nn.relu(values)
        return values

    def apply(self, gradients: Sequence[Any]) -> None:
        rate = self._case.learning_rate
        if self._case.optimizer == "sgd":
            for variable, gradient in zip(self.variables, gradients, strict=True):
                tf.raw_ops.ResourceApplyGradientDescent(var=variable.handle, alpha=rate, delta=gradient)
            return
        step = tf.cast(self._iterations + 1, tf.float32)
        for variable, (first, second), gradient in zip(self.variables, self._slots, gradients, strict=True):
            tf.raw_ops.ResourceApplyAdam(
                var=variable.handle,
                m=first.handle,
                v=second.handle,
                beta1_power=tf.pow(BETA_1, step),
                beta2_power=tf.pow(BETA_2, step),
                lr=rate,
                beta1=BETA_1,
                beta2=BETA_2,
                epsilon=EPSILON,
                grad=gradient,
            )
        self._iterations.assign_add(1, read_value=False)


class Model:
    """One of the two models, with its loss and its update."""

    def __init__(self, case: Case, folder: Path, *, rows: str) -> None:
        self._case = case
        self._rows = rows
        self._dense = Dense(case)
        if case.has_table:
            rows_of = np.fromfile(folder / "table", np.float32).reshape(-1, TABLE_COLUMNS)
            self._table = tf.Variable(tf.constant(rows_of))

    def step(self, inputs: Any, labels: Any) -> Any:
        """Reads each variable once, and applies one gradient to each."""
        watched = self._dense.variables + ([self._table] if self._case.has_table else [])
        with tf.GradientTape() as tape:
            loss = self.loss(inputs, labels)
        *dense, last = tape.gradient(loss, watched)
        if not self._case.has_table:
            self._dense.apply([*dense, last])
            return loss
        self._dense.apply(dense)
        assert isinstance(last, tf.IndexedSlices)
        self._table.scatter_sub(tf.IndexedSlices(ROW_LEARNING_RATE * last.values, last.indices))
        return loss

    def loss(self, inputs: Any, labels: Any) -> Any:
        if not self._case.has_table:
            scores = self._dense(tf.cast(inputs, tf.float32) / 255, self._dense.variables)
            return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, scores))
        if self._rows == "once":
            ids, places = tf.unique(tf.reshape(inputs, [-1]))
            rows = tf.gather(tf.gather(self._table, ids), places)
        else:
            rows = tf.gather(self._table, inputs)
        scores = self._dense(tf.reshape(rows, [len(inputs), -1]), self._dense.variables)
        return tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels, scores[:, 0]))


def make_dataset(case: Case, folder: Path) -> Any:
    """Returns batches without end, in the order of the file; in memory after the first time round."""
    width, dtype = inputs_shape(case)

    def column(kind: str, of: np.dtype[Any], shape: tuple[int, ...]) -> Any:
        path = folder / case.data / kind
        record_bytes = int(np.prod(shape)) * of.itemsize
        rest = path.stat().st_size % record_bytes
        records = tf.data.FixedLengthRecordDataset(str(path), record_bytes, footer_bytes=rest)
        return records.map(lambda record: tf.reshape(tf.io.decode_raw(record, of.name), shape))

    batch = case.batch_size
    inputs, labels = column("inputs", dtype, (batch, width)), column("labels", labels_dtype(case), (batch,))
    return tf.data.Dataset.zip((inputs, labels)).cache().repeat().prefetch(tf.data.AUTOTUNE)


def variable_ops(function: Any, *, inside: str | None) -> str:
    """Says how often a compiled closure does what to variables."""
    graph = function.graph.as_graph_def()
    nodes = list(graph.node) if inside is None else []
    for called in graph.library.function:
        if inside is not None and inside in called.signature.name:
            nodes += called.node_def
    counts = Counter(node.op for node in nodes)
    chosen = ("ReadVariableOp", "ResourceGather", "ResourceApply", "ResourceScatter", "AssignAdd")
    return ", ".join(f"{count} {op} a step" for op, count in sorted(counts.items()) if op.startswith(chosen))


def coordinate(case: Case, folder: Path, resolver: Any, *, steps_a_closure: int, rows: str) -> dict[str, Any]:
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        model = Model(case, folder, rows=rows)

    def steps(iterator: Any) -> Any:
        loss = 0.0
        if steps_a_closure == 1:
            return model.step(*next(iterator))
        for _ in tf.range(steps_a_closure):
            loss = model.step(*next(iterator))
        return loss

    closure: Any = tf.function(steps)
    batches = iter(coordinator.create_per_worker_dataset(lambda: make_dataset(case, folder)))

    def train() -> None:
        for _ in range(case.num_steps // steps_a_closure):
            coordinator.schedule(closure, args=(batches,))
        coordinator.join()

    train()
    with timed():
        train()
    inputs, labels = (tf.constant(array[:NUM_JUDGED]) for array in load(case, folder))
    loss = float(tf.function(model.loss)(inputs, labels))
    inside = None if steps_a_closure == 1 else "while_body"
    traced = closure.get_concrete_function(iter(make_dataset(case, folder)))
    return {"loss": loss, "counted": variable_ops(traced, inside=inside)}


def main() -> None:
    order = read_order()
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
        return
    options = {"steps_a_closure": order["num_together"], "rows": order["rows"]}
    say(coordinate(CASES[order["case"]], Path(order["folder"]), resolver, **options))
    os._exit(0)  # its threads still talk to servers, which end by being killed


if __name__ == "__main__":
    main()
