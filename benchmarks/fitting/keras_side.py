"""Keras without Lockstep, on the backend that ``KERAS_BACKEND`` names: ``python -m fitting.keras_side ORDER``."""

from __future__ import annotations

import time
from typing import Any

from harness.protocol import own_peak_bytes, read_order, say, serve_rounds

BEGUN = time.perf_counter()

from fitting.cases import CASES, NUM_CHECKED_STEPS, make_examples  # noqa: E402
from fitting.keras_models import make_model  # noqa: E402


def fit_rounds(order: dict[str, Any], model: Any, *, begun: float) -> None:
    """Takes the first steps by ``fit``, then rounds of an epoch each."""
    case, batch_size = CASES[order["case"]], order["batch_size"]
    inputs, labels = make_examples(case, batch_size)
    first = inputs[:batch_size], labels[:batch_size]
    started = time.perf_counter()
    losses = model.fit(*first, batch_size=batch_size, shuffle=False, verbose=0).history["loss"]
    ended = time.perf_counter()
    if case.is_checked:
        epochs = NUM_CHECKED_STEPS - 1
        history = model.fit(*first, batch_size=batch_size, shuffle=False, verbose=0, epochs=epochs)
        losses += history.history["loss"]
    say(
        {
            "first_step_s": ended - started,
            "start_s": ended - begun,
            "losses": [float(loss) for loss in losses],
            "num_parameters": int(sum(int(one.numpy().size) for one in model.trainable_variables)),
        }
    )

    def round_of() -> dict[str, Any]:
        history = model.fit(inputs, labels, batch_size=batch_size, verbose=0).history
        return {"loss": float(history["loss"][-1]), "peak_bytes": own_peak_bytes()}

    serve_rounds(round_of)


if __name__ == "__main__":
    asked = read_order()
    if asked.get("is_distributed"):  # over all devices of this process, as Keras itself does it
        import keras

        keras.distribution.set_distribution(keras.distribution.DataParallel(auto_shard_dataset=False))
    fit_rounds(asked, make_model(asked["case"]), begun=BEGUN)
