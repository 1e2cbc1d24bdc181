"""PyTorch, as its guides write training: ``python -m fitting.torch_side ORDER``; needs torch and torchvision.

With ``WORLD_SIZE`` in the environment, as torchrun sets it, each process takes its rows of each batch, and
DistributedDataParallel averages the gradients by gloo.
"""

from __future__ import annotations

import os
import time
from itertools import pairwise
from typing import Any

from harness.protocol import own_peak_bytes, read_order, say, serve_rounds

BEGUN = time.perf_counter()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.nn import functional  # noqa: E402

from fitting.cases import CASES, EPSILON, NUM_CHECKED_STEPS, NUM_CLASSES, make_examples, make_weights  # noqa: E402

HIDDEN = 128


class Cnn(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 32, 3), nn.Conv2d(32, 64, 3)
        self.last = nn.Linear(1600, NUM_CLASSES)

    def forward(self, images: Any) -> Any:
        """Takes images (batch, height, width, channels), as Keras does."""
        hidden = functional.max_pool2d(functional.relu(self.first(images.permute(0, 3, 1, 2))), 2)
        hidden = functional.max_pool2d(functional.relu(self.second(hidden)), 2)
        return self.last(hidden.permute(0, 2, 3, 1).flatten(1))


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, HIDDEN, batch_first=True)
        self.lstm.bias_hh_l0.requires_grad_(False)  # Keras has one bias
        self.last = nn.Linear(HIDDEN, NUM_CLASSES)

    def forward(self, rows: Any) -> Any:
        _, (hidden, _) = self.lstm(rows)
        return self.last(hidden[0])


def make_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "dense":
        return nn.Sequential(nn.Linear(784, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, NUM_CLASSES))
    if name == "wide":
        widths = (784, *[2400] * 4)
        hidden = [layer for width in pairwise(widths) for layer in (nn.Linear(*width), nn.ReLU())]
        return nn.Sequential(*hidden, nn.Linear(widths[-1], NUM_CLASSES))
    if name == "cnn":
        return Cnn()
    if name == "lstm":
        return Lstm()
    import torchvision

    class Photos(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = torchvision.models.densenet121(weights=None, num_classes=NUM_CLASSES)

        def forward(self, images: Any) -> Any:
            return self.network(images.permute(0, 3, 1, 2))

    return Photos()


def set_weights(model: nn.Module) -> None:
    """Gives the model the first values that Keras's has."""
    parameters = [one for one in model.parameters() if one.requires_grad]
    if isinstance(model, Lstm):
        nn.init.zeros_(model.lstm.bias_hh_l0)
    shapes = [_keras_shape(tuple(one.shape)) for one in parameters]
    with torch.no_grad():
        for parameter, value in zip(parameters, make_weights(shapes), strict=True):
            turned = value.transpose(3, 2, 0, 1) if value.ndim == 4 else value.T
            parameter.copy_(torch.from_numpy(np.ascontiguousarray(turned)))


def _keras_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[2:], shape[1], shape[0]) if len(shape) == 4 else shape[::-1]


def main() -> None:
    order = read_order()
    case, batch_size = CASES[order["case"]], order["batch_size"]
    rank, count = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    model = make_model(order["case"])
    if case.is_checked:
        set_weights(model)
    if order["case"] in ("cnn", "densenet121"):
        model = model.to(memory_format=torch.channels_last)
    trained = [one for one in model.parameters() if one.requires_grad]
    if count > 1:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // count))
        distributed.init_process_group("gloo")
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(trained, case.rate, eps=EPSILON, fused=True)

    def loss_of(inputs: Any, labels: Any) -> Any:
        return functional.cross_entropy(model(inputs), labels)

    loss_fn: Any = torch.compile(loss_of) if order["compiles"] else loss_of
    examples, answers = make_examples(case, batch_size)
    inputs, labels = torch.from_numpy(examples), torch.from_numpy(answers.astype(np.int64))

    def step(rows: Any) -> Any:
        optimizer.zero_grad(set_to_none=True)
        rows = rows.tensor_split(count)[rank]
        loss = loss_fn(inputs[rows], labels[rows])
        loss.backward()
        optimizer.step()
        return loss.detach()

    def mean(loss: Any) -> float:
        if count > 1:
            distributed.all_reduce(loss)
        return float(loss) / count

    first = torch.arange(batch_size)
    started = time.perf_counter()
    losses = [mean(step(first))]
    ended = time.perf_counter()
    if case.is_checked:
        losses += [mean(step(first)) for _ in range(NUM_CHECKED_STEPS - 1)]
    say(
        {
            "first_step_s": ended - started,
            "start_s": ended - BEGUN,
            "losses": losses,
            "num_parameters": sum(one.numel() for one in trained),
        }
    )

    def epoch() -> float:
        total = torch.zeros(())
        rows = torch.randperm(len(inputs))
        for part in rows.split(batch_size):
            total += step(part)
        return float(total) * batch_size / len(inputs)

    serve_rounds(lambda: {"loss": epoch(), "peak_bytes": own_peak_bytes()})


if __name__ == "__main__":
    main()
