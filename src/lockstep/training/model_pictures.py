"""What TensorBoard shows of a model and its data besides scalars: histograms, images, hyperparameters."""

# Keras and tensorboardX are only partly typed.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportMissingTypeStubs=false, reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeAlias

import jax
import keras
import numpy as np
from tensorboardX.proto.api_pb2 import MetricInfo, MetricName
from tensorboardX.proto.plugin_hparams_pb2 import HParamsPluginData
from tensorboardX.summary import hparams

from lockstep.errors import InvalidInputError
from lockstep.strategies.epochs import current_layout, place_for_step
from lockstep.strategies.gathering import whole_value

HParam: TypeAlias = bool | int | float | str

MAX_IMAGES: Final = 16
"""The maximum number of images of one name that are written at a time."""


def weight_values(model: Any) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the path and the value of each weight of a model. Every process of a job has to call it.

    Args:
        model: a built model.
    """
    for weight in model.weights:
        if not np.issubdtype(np.dtype(keras.backend.standardize_dtype(weight.dtype)), np.unsignedinteger):
            yield weight.path, whole_value(weight.value).astype(np.float32)  # the others are states of random numbers


def gradient_values(model: Any, batch: tuple[Any, ...]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields the path of each trainable weight, and the gradient of the model's loss over a batch.

    The model is used as in training, but its state does not change: dropout takes the same masks each time.

    Args:
        model: a built and compiled model, in the scope of its strategy.
        batch: inputs, targets and, if there are any, sample weights.

    Raises:
        InvalidInputError: the strategy trains in several processes.
    """
    layout = current_layout()
    if layout is not None and layout.num_processes > 1:
        raise InvalidInputError(
            "histograms of gradients are written only if one process trains the model",
            received=f"{layout.num_processes} processes",
            action="leave out gradient_batch",
        )
    x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
    optimizer_variables = [] if model.optimizer is None else model.optimizer.variables
    groups = (
        *(model.trainable_variables, model.non_trainable_variables, model.metrics_variables),
        [variable for variable in optimizer_variables if not variable.shape],  # the scale of a scaled loss
    )
    state: Any = tuple([variable.value for variable in group] for group in groups)
    data: Any = jax.tree.map(np.asarray, (x, y, weights))
    if layout is not None:
        state = layout.to_compute_devices(state)
        data = place_for_step(layout, data)

    def loss(trainable: Any, non_trainable: Any, metrics: Any, scalars: Any, inputs: Any) -> Any:
        known = iter(scalars)
        optimizer_values = [variable.value if variable.shape else next(known) for variable in optimizer_variables]
        _, (unscaled, *_) = model.compute_loss_and_updates(
            trainable, non_trainable, metrics, *inputs, training=True, optimizer_variables=optimizer_values
        )
        return unscaled

    gradients = jax.jit(jax.grad(loss))(*state, data)
    for variable, gradient in zip(model.trainable_variables, gradients, strict=True):
        yield variable.path, whole_value(gradient).astype(np.float32)


def image_values(images: Mapping[str, Any]) -> Iterator[tuple[str, np.ndarray[Any, Any]]]:
    """Yields a tag and an image for each of some images, such as "digits/0".

    Args:
        images: arrays by name, each of an image or of several: (rows, columns), (rows, columns, channels) or (images,
            rows, columns, channels), with 1, 3 or 4 channels; of bytes, or of numbers from 0 to 1.

    Yields:
        The tag, and a uint8 array of shape (rows, columns, channels).

    Raises:
        InvalidInputError: an array is of another shape.
    """
    for name, value in images.items():
        array = np.asarray(value)
        if array.ndim == 2:
            array = array[..., None]
        several = array if array.ndim == 4 else array[None]
        if several.ndim != 4 or several.shape[-1] not in (1, 3, 4):
            raise InvalidInputError(
                f"the images {name!r} for TensorBoard",
                received=f"an array of shape {np.shape(value)}",
                allowed="(rows, columns), (rows, columns, channels) or (images, rows, columns, channels), with 1, 3 "
                "or 4 channels",
            )
        for number, image in enumerate(several[:MAX_IMAGES]):
            as_bytes = image if image.dtype == np.uint8 else np.clip(image * 255.0, 0, 255).astype(np.uint8)
            yield f"{name}/{number}", as_bytes


def check_hyperparameters(values: Mapping[str, Any]) -> dict[str, HParam]:
    """Returns hyperparameters as TensorBoard's page for them takes them.

    Args:
        values: the hyperparameters by name.

    Raises:
        InvalidInputError: a value is not a boolean, a number or a text.
    """
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in values.items()}
    for name, value in plain.items():
        if not isinstance(value, bool | int | float | str):
            raise InvalidInputError(
                f"the hyperparameter {name!r}", received=value, allowed="a boolean, a number or a text"
            )
    return plain


def hyperparameter_summaries(values: Mapping[str, HParam], *, metrics: Mapping[str, str]) -> tuple[Any, ...]:
    """Returns the summaries with which TensorBoard lists a run by its hyperparameters.

    Args:
        values: the hyperparameters by name.
        metrics: the runs by the tags of the metrics that are shown beside them, such as {"epoch_loss": "train"}.

    Returns:
        The experiment, the beginning and the successful end of the session.
    """
    experiment, began, ended = hparams(dict(values), {})
    metadata = experiment.value[0].metadata.plugin_data
    content = HParamsPluginData.FromString(metadata.content)
    for tag, run in metrics.items():
        content.experiment.metric_infos.append(MetricInfo(name=MetricName(group=run, tag=tag)))
    metadata.content = content.SerializeToString()
    return experiment, began, ended
