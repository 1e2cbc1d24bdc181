"""Decodes JPEG and PNG files in a prediction request, in the same way as `lockstep.data` does for training.

The conversion to pixels is unambiguous if the model takes pixels in the image's size: bytes, or floats that its own
``Rescaling`` layer scales. Otherwise, the conversion to numbers is in code that is not part of the model. The server
does not guess it; its error says how to save a model that contains the conversion.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

import numpy as np

from lockstep.data.images import decode_image, image_size
from lockstep.errors import BodyTooLargeError, CorruptDataError, InvalidInputError

MAX_DECODED_BYTES: Final = 2**28
"""The maximum size of one request's decoded images, in bytes: a small file may be a huge image."""

_BEGINNINGS: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_NUMBERS_OF_CHANNELS: Final = (1, 3, 4)


def is_image_file(data: bytes) -> bool:
    """Returns whether bytes begin like a JPEG or PNG file."""
    return data.startswith(_BEGINNINGS)


def num_channels_of(shape: tuple[int | None, ...]) -> int | None:
    """Returns the number of channels of images of this shape; None if it is not the shape of an image.

    Args:
        shape: the shape of one instance: (height, width) for a grey image, or (height, width, channels).
    """
    if len(shape) == 2:
        return 1
    return shape[2] if len(shape) == 3 and shape[2] in _NUMBERS_OF_CHANNELS else None


@final
@dataclass(kw_only=True)
class ImageReader:
    """Decodes the images of one request.

    Attributes:
        num_bytes_left: how many more bytes of decoded images the request may have.
    """

    num_bytes_left: int = MAX_DECODED_BYTES

    def read(self, data: bytes, *, shape: tuple[int | None, ...], dtype: str, place: str) -> np.ndarray:
        """Decodes one file.

        Args:
            data: the content of the file.
            shape: the shape of the model's input, without the batch dimension; `num_channels_of` must not be None for
                it.
            dtype: the dtype of the model's input.
            place: the position of the file in the request, for messages.

        Returns:
            Pixels from 0 to 255, with this shape and dtype.

        Raises:
            InvalidInputError: the file cannot be decoded, or the image's size differs from the input's.
            BodyTooLargeError: the request's decoded images are too large.
        """
        num_channels = num_channels_of(shape)
        assert num_channels is not None, "whoever asks has looked"
        try:
            height, width = image_size(data)
            self._check_size((height, width), wanted=shape[:2], place=place)
            num_bytes = height * width * num_channels * np.dtype(dtype).itemsize
            if num_bytes > self.num_bytes_left:
                raise BodyTooLargeError(
                    f"{place}: the decoded images exceed the limit",
                    received=f"an image of {height} x {width}",
                    allowed=f"{MAX_DECODED_BYTES} bytes in one request",
                    action="send fewer or smaller images at a time",
                )
            pixels = decode_image(data, num_channels=num_channels)
        except CorruptDataError as error:
            raise InvalidInputError(f"{place}: {error}") from None
        self.num_bytes_left -= num_bytes
        image = pixels[..., 0] if len(shape) == 2 else pixels
        return image.astype(dtype, copy=False)

    def _check_size(self, size: tuple[int, int], *, wanted: tuple[int | None, ...], place: str) -> None:
        if all(want in (None, has) for has, want in zip(size, wanted, strict=True)):
            return
        height, width = ("any" if want is None else want for want in wanted)
        raise InvalidInputError(
            f"{place}: the image has another size than the model's input",
            received=f"{size[0]} x {size[1]}",
            allowed=f"{height} x {width}",
            action="resize it as the images were resized for training, or save a model that takes any size: "
            f'keras.Input((None, None, 3), dtype="uint8"), then keras.layers.Resizing({height}, {width})',
        )


def image_file_error(*, dtype: str, place: str) -> InvalidInputError:
    """Returns the error for an image file if the range of the input's numbers is not known.

    Args:
        dtype: the dtype of the model's input.
        place: the position of the file in the request, for the message.
    """
    return InvalidInputError(
        f"{place}: the model does not define how to convert a JPEG or PNG to {dtype}",
        allowed="numbers, scaled as for training",
        action='save a model that takes pixels: image = keras.Input(shape, dtype="uint8"), then '
        "keras.Model(image, model(keras.layers.Rescaling(1 / 255)(image))) with the scale of your training",
    )
