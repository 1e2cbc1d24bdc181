"""Decodes the image files of a batch into one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import DTypeLike

from lockstep.data.arguments import check_dtype, describe_received, is_sequence
from lockstep.data.images.array_pool import ArrayPool
from lockstep.data.images.codec import check_num_channels, decode_image, image_size
from lockstep.data.images.steps import AbstractHorizontalFlip, AbstractImageStep, Normalization, Rescaling
from lockstep.data.reading.randomness import RecordRandom
from lockstep.errors import CorruptDataError, InvalidInputError

_NO_DRAWS: Final = np.empty(0)


@final
class ImageDecoder:
    """Decodes the images of a batch, applies steps to each of them, and writes them into one array.

    Images are processed one by one, so that each stays in the processor's cache until it is written to its row. The
    work releases the GIL, so several threads make batches in parallel. If the first step with a size of its own makes
    images smaller, JPEGs are decoded at a reduced size.

    It may be pickled, and called from any thread.

    Args:
        *steps: the steps of `lockstep.data.images` to apply, in order: first those that work on pixels, then
            `Rescaling` and `Normalization`, if any.
        num_channels: the number of channels: 1, 3 or 4, as for `decode_image`.
        dtype: the dtype of the result. By default uint8 without rescaling, and float32 with it; another float is
            possible.

    Raises:
        InvalidInputError: If the steps are not in this order, if an argument is not valid, or if the dtype cannot hold
            the results.
    """

    def __init__(
        self,
        *steps: AbstractImageStep | Rescaling | Normalization,
        num_channels: int = 3,
        dtype: DTypeLike | None = None,
    ) -> None:
        for step in steps:
            if not isinstance(step, AbstractImageStep | Rescaling | Normalization):
                raise InvalidInputError(
                    "not a step of an ImageDecoder",
                    received=f"{type(step).__module__}.{type(step).__qualname__}",
                    allowed="steps of lockstep.data.images, one argument each",
                    action="layers of Keras go into the model; lockstep.data.images has steps of the same names",
                )
        pixel_steps = [step for step in steps if isinstance(step, AbstractImageStep)]
        scalings = [step for step in steps if isinstance(step, Rescaling | Normalization)]
        if list(steps) != [*pixel_steps, *scalings]:
            raise InvalidInputError(
                "the order of an ImageDecoder's steps",
                received=[type(step).__name__ for step in steps],
                allowed="steps on pixels, then Rescaling and Normalization",
            )
        self._steps = pixel_steps
        self._num_channels = check_num_channels(num_channels)
        self._scale, self._offset = _combine_scalings(scalings, self._num_channels)
        default = np.dtype(np.uint8 if self._scale is None else np.float32)
        name, kinds, allowed = "the dtype of images", "fu", "uint8 without rescaling, or a float"
        self._dtype = default if dtype is None else check_dtype(dtype, name=name, kinds=kinds, allowed=allowed)
        if self._dtype.kind == "u" and (self._scale is not None or self._dtype != np.uint8):
            raise InvalidInputError(name, received=str(self._dtype), allowed=allowed)
        self._num_draws = sum(step.num_draws for step in pixel_steps)
        self._pool = ArrayPool()

    def __call__(self, images: Sequence[bytes] | np.ndarray, random: RecordRandom | None = None) -> np.ndarray:
        """Returns the images as an array of shape (num_images, height, width, channels).

        Args:
            images: the bytes of image files, as a sequence, or as an array of objects of shape (num_images,).
            random: the random numbers for random steps, as `Batches` passes them to its ``random_transform``.

        Raises:
            CorruptDataError: If a file is not an image, or is damaged; the message has its position in the batch.
            InvalidInputError: If a file is not bytes, if the resulting images differ in size, or if a step needs
                ``random``.
        """
        if not is_sequence(images):
            raise InvalidInputError(
                "the images of a batch",
                received=describe_received(images),
                allowed="a sequence of the bytes of image files",
            )
        draws = self._draw(len(images), random)
        out: np.ndarray | None = None
        scratch: np.ndarray | None = None
        for position, data in enumerate(images):
            try:
                image, scratch = self._make(data, draws[position], scratch)
            except (CorruptDataError, InvalidInputError) as error:
                raise type(error)(
                    f"image {position} of the batch: {error.what}",
                    received=error.received,
                    allowed=error.allowed,
                    action=error.action,
                ) from error
            if out is None:
                out = self._pool.empty((len(images), *image.shape), self._dtype)
            elif image.shape != out.shape[1:]:
                raise InvalidInputError(
                    "the images of a batch have different sizes",
                    received=f"{image.shape[0]} x {image.shape[1]} after {out.shape[1]} x {out.shape[2]}",
                    action="begin the ImageDecoder's steps with Resizing, CenterCrop or RandomCrop",
                )
            self._write(image, out[position])
        return np.empty((0, 0, 0, self._num_channels), self._dtype) if out is None else out

    def _draw(self, num_images: int, random: RecordRandom | None) -> np.ndarray:
        if not self._num_draws:
            return np.empty((num_images, 0))
        if random is None:
            raise InvalidInputError(
                "steps that are random need numbers to draw from",
                action="give Batches a random_transform, and pass its second argument to the ImageDecoder",
            )
        if not isinstance(random, RecordRandom):
            raise InvalidInputError("the random numbers of images", received=random, allowed="a RecordRandom")
        if len(random) != num_images:
            raise InvalidInputError("the random numbers' records", received=len(random), allowed=f"{num_images}")
        return random.uniform(self._num_draws)

    def _make(self, data: bytes, draws: np.ndarray, scratch: np.ndarray | None) -> tuple[np.ndarray, np.ndarray | None]:
        """Returns an image after all steps, and memory (or None) for the next image once this one has been copied."""
        reverse = self._is_flipped(draws)
        image = decode_image(
            data,
            num_channels=self._num_channels,
            min_size=self._min_size(data, draws),
            out=scratch,
            reverse_channels=reverse,
        )
        scratch = image if image.flags.c_contiguous and image.flags.writeable else None
        at = 0
        for step in self._steps:
            image = step.apply(image, draws[at : at + step.num_draws])
            at += step.num_draws
        return image[..., ::-1] if reverse else image, scratch

    def _is_flipped(self, draws: np.ndarray) -> bool:
        at, is_flipped = 0, False
        for step in self._steps:
            if isinstance(step, AbstractHorizontalFlip):
                is_flipped ^= step.flips_horizontally(draws[at : at + step.num_draws])
            at += step.num_draws
        return is_flipped

    def _min_size(self, data: bytes, draws: np.ndarray) -> tuple[int, int]:
        if not self._steps:
            return 0, 0
        size = image_size(data)
        at = 0
        for step in self._steps:
            sufficient = step.sufficient_size(size, draws[at : at + step.num_draws])
            if sufficient is not None:
                return sufficient
            at += step.num_draws
        return 0, 0

    def _write(self, image: np.ndarray, row: np.ndarray) -> None:
        if self._scale is None:
            np.copyto(row, image, casting="unsafe" if self._dtype.kind == "f" else "no")
            return
        # A line's pixels and channels are one dimension, so that scales of channels are long arrays, not runs of three.
        height, width = image.shape[:2]
        lines, target = image.reshape(height, -1), row.reshape(height, -1)
        scale, offset = self._scale, self._offset
        if scale.size > 1:
            scale, offset = np.tile(scale, width), np.tile(offset, width)
        if self._dtype.itemsize < scale.itemsize:  # computed in float32, and rounded once at the end
            np.copyto(target, lines * scale + offset, casting="same_kind")
            return
        np.multiply(lines, scale, out=target, casting="same_kind")
        if offset.any():
            np.add(target, offset, out=target, casting="same_kind")


def _combine_scalings(scalings: Sequence[Any], num_channels: int) -> tuple[np.ndarray | None, np.ndarray]:
    """Combines several scalings into one scale and one offset: float32, of shape () or (num_channels,)."""
    if not scalings:
        return None, _NO_DRAWS
    scale, offset = np.ones(()), np.zeros(())
    for step in scalings:
        scale, offset = scale * step.scale, offset * step.scale + step.offset
    for values in (scale, offset):
        if values.shape not in ((), (num_channels,)):
            raise InvalidInputError(
                "the scale or offset of images",
                received=f"shape {values.shape}",
                allowed=f"a number, or {num_channels}",
            )
    scale, offset = np.broadcast_arrays(scale, offset)
    return scale.astype(np.float32), offset.astype(np.float32)
