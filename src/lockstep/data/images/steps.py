"""Image steps for the host, with the names and arguments of Keras's layers.

The layers in `keras.layers` run on the device as part of the training step. They cost no time on the host, but need
whole batches of one shape. Here, images may differ in shape, and `ImageDecoder` makes batches of the results.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, Final, Literal, final

import numpy as np

from lockstep.data.arguments import check_bool, check_bounds, check_float, check_int, describe_received, is_sequence
from lockstep.data.images.codec import MAX_PIXELS, resize_image, to_pillow
from lockstep.errors import InvalidInputError

FillMode = Literal["reflect", "wrap", "constant", "nearest"]

_PAD_MODES: Final[dict[str, Any]] = {"reflect": "symmetric", "wrap": "wrap", "nearest": "edge"}
"""The modes of filling pixels beyond an image's edge: Keras's names, and NumPy's for the same."""


class AbstractImageStep(ABC):
    """A step that changes one image. It has no state that changes, and may be called from any thread.

    Attributes:
        num_draws: the number of random numbers that it needs for each image.
    """

    num_draws: int = 0

    @abstractmethod
    def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """Returns the changed image, which may share memory with the given one.

        Args:
            image: the pixels, uint8 of shape (height, width, channels).
            draws: random numbers in [0, 1), float64 of shape (num_draws,).
        """

    @abstractmethod
    def sufficient_size(self, size: tuple[int, int], draws: np.ndarray) -> tuple[int, int] | None:
        """Returns the image size that is sufficient for this step, so that a JPEG can be decoded at a reduced size.

        Args:
            size: the image's height and width.
            draws: random numbers, as for `apply`.

        Returns:
            Height and width; (0, 0) if the step needs the image's full size; None if any size is sufficient, so that
            the next step decides.
        """


class AbstractHorizontalFlip(AbstractImageStep):
    """A step that may flip an image left to right.

    The decoder asks before it decodes an image, for the argument ``reverse_channels`` of `decode_image`.
    """

    @abstractmethod
    def flips_horizontally(self, draws: np.ndarray) -> bool:
        """Whether the step flips an image left to right."""


@final
class Resizing(AbstractImageStep):
    """Resizes images to one size, bilinearly, as ``keras.layers.Resizing`` does, but with antialiasing.

    Args:
        height: the height of the result, in pixels.
        width: the width of the result, in pixels.
        crop_to_aspect_ratio: whether only the central part with the result's proportions is used, instead of distorting
            the image.
        pad_to_aspect_ratio: whether the whole image is used without distortion, with a border of ``fill_value``.
        fill_value: the value of the border's pixels, 0 to 255.
    """

    def __init__(
        self,
        height: int,
        width: int,
        *,
        crop_to_aspect_ratio: bool = False,
        pad_to_aspect_ratio: bool = False,
        fill_value: int = 0,
    ) -> None:
        self._size = _size(height, width, of="Resizing")
        if crop_to_aspect_ratio and pad_to_aspect_ratio:
            raise InvalidInputError("Resizing cannot both crop and pad to the aspect ratio", action="choose one")
        self._crops = check_bool(crop_to_aspect_ratio, name="crop_to_aspect_ratio of Resizing")
        self._pads = check_bool(pad_to_aspect_ratio, name="pad_to_aspect_ratio of Resizing")
        self._fill_value = _byte(fill_value, of="Resizing")

    def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """See the base class."""
        del draws
        if self._pads:
            return self._padded(image)
        return resize_image(image, size=self._size, box=self._box(*image.shape[:2]) if self._crops else None)

    def sufficient_size(self, size: tuple[int, int], draws: np.ndarray) -> tuple[int, int]:
        """See the base class."""
        del draws
        return self._inner(*size) if self._pads else self._size

    def _box(self, height: int, width: int) -> tuple[float, float, float, float]:
        scale = min(height / self._size[0], width / self._size[1])
        crop_height, crop_width = scale * self._size[0], scale * self._size[1]
        top, left = (height - crop_height) / 2, (width - crop_width) / 2
        return max(0.0, top), max(0.0, left), min(height, top + crop_height), min(width, left + crop_width)

    def _inner(self, height: int, width: int) -> tuple[int, int]:
        scale = min(self._size[0] / height, self._size[1] / width)
        return max(1, round(height * scale)), max(1, round(width * scale))

    def _padded(self, image: np.ndarray) -> np.ndarray:
        height, width = self._inner(*image.shape[:2])
        padded = np.full((*self._size, image.shape[2]), self._fill_value, np.uint8)
        top, left = (self._size[0] - height) // 2, (self._size[1] - width) // 2
        padded[top : top + height, left : left + width] = resize_image(image, size=(height, width))
        return padded


@final
class CenterCrop(AbstractImageStep):
    """Crops the central part, as ``keras.layers.CenterCrop`` does; a smaller image is enlarged first.

    Args:
        height: the height of the result, in pixels.
        width: the width of the result, in pixels.
    """

    def __init__(self, height: int, width: int) -> None:
        self._size = _size(height, width, of="CenterCrop")

    def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """See the base class."""
        del draws
        return _cropped(image, self._size, 0.5, 0.5)

    def sufficient_size(self, size: tuple[int, int], draws: np.ndarray) -> tuple[int, int]:
        """See the base class; cropping needs the image's full size."""
        del size, draws
        return 0, 0


@final
class RandomCrop(AbstractImageStep):
    """Crops at a random position, as ``keras.layers.RandomCrop`` does; a smaller image is enlarged first.

    Args:
        height: the height of the result, in pixels.
        width: the width of the result, in pixels.
    """

    num_draws = 2

    def __init__(self, height: int, width: int) -> None:
        self._size = _size(height, width, of="RandomCrop")

    def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """See the base class."""
        return _cropped(image, self._size, *draws.tolist())

    def sufficient_size(self, size: tuple[int, int], draws: np.ndarray) -> tuple[int, int]:
        """See the base class; cropping needs the image's full size."""
        del size, draws
        return 0, 0


@final
class RandomResizedCrop(AbstractImageStep):
    """Crops a part of random area, proportions and position, and resizes it, as in the training of Inception.

    (Szegedy et al., "Going deeper with convolutions", 2015; torchvision's transform of this name.)

    Args:
        height: the height of the result, in pixels.
        width: the width of the result, in pixels.
        scale: the smallest and largest area of the part, as fractions of the image's area.
        ratio: the smallest and largest ratio of the part's width to its height, before resizing.
    """

    num_draws = 4

    def __init__(
        self,
        height: int,
        width: int,
        *,
        scale: tuple[float, float] = (0.08, 1.0),
        ratio: tuple[float, float] = (3 / 4, 4 / 3),
    ) -> None:
        self._size = _size(height, width, of="RandomResizedCrop")
        self._scale = _positive_range(scale, name="the scale of RandomResizedCrop", maximum=1)
        self._ratio = _positive_range(ratio, name="the ratio of RandomResizedCrop", maximum=math.inf)

    def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """See the base class."""
        height, width = image.shape[:2]
        return resize_image(image, size=self._size, box=self._box(height, width, draws))

    def sufficient_size(self, size: tuple[int, int], draws: np.ndarray) -> tuple[int, int]:
        """See the base class; the size at which the part is as large as the result."""
        top, left, bottom, right = self._box(*size, draws)
        height, width = size
        return math.ceil(height * self._size[0] / (bottom - top)), math.ceil(width * self._size[1] / (right - left))

    def _box(self, height: int, width: int, draws: np.ndarray) -> tuple[float, float, float, float]:
        low, high = self._scale
        area = height * width * (low + (high - low) * draws[0])
        low, high = map(math.log, self._ratio)
        ratio = math.exp(low + (high - low) * draws[1])
        # A part that would be larger than the image is cut to it, so that the proportions are as near as possible.
        crop_width = min(math.sqrt(area * ratio), width)
        crop_height = min(area / crop_width, height)
        top, left = draws[2] * (height - crop_height), draws[3] * (width - crop_width)
        return top, left, top + crop_height, left + crop_width


@final
class RandomFlip(AbstractHorizontalFlip):
    """Flips each image with a probability of 1/2, as ``keras.layers.RandomFlip`` does.

    Args:
        mode: "horizontal" (left to right), "vertical" (upside down), or "horizontal_and_vertical": both, independently.
    """

    num_draws = 2

    def __init__(self, mode: Literal["horizontal", "vertical", "horizontal_and_vertical"] = "horizontal") -> None:
        modes = ("horizontal", "vertical", "horizontal_and_vertical")
        if mode not in modes:
            raise InvalidInputError("the mode of RandomFlip", received=describe_received(mode), allowed=modes)
        self._horizontal, self._vertical = mode != "vertical", mode != "horizontal"

    def flips_horizontally(self, draws: np.ndarray) -> bool:
        """See the base class."""
        return self._horizontal and bool(draws[0] < 0.5)

    def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """See the base class."""
        if self.flips_horizontally(draws):
            image = image[:, ::-1]
        return image[::-1] if self._vertical and draws[1] < 0.5 else image

    def sufficient_size(self, size: tuple[int, int], draws: np.ndarray) -> None:
        """See the base class; any size is sufficient."""
        del size, draws


@final
class RandomRotation(AbstractImageStep):
    """Rotates about the centre by a random angle, bilinearly, as ``keras.layers.RandomRotation`` does; keeps the size.

    Args:
        factor: the largest angle, as a fraction of a full turn: 0.1 rotates by up to 36 degrees in either direction. Or
            a lower and an upper bound; positive angles are counter-clockwise.
        fill_mode: the pixels from beyond the edge: the image mirrored at the edge ("reflect") or repeated ("wrap"), its
            last pixel ("nearest"), or ``fill_value`` ("constant").
        fill_value: the pixel value for "constant", 0 to 255.
    """

    num_draws = 1

    def __init__(
        self, factor: float | tuple[float, float], *, fill_mode: FillMode = "reflect", fill_value: int = 0
    ) -> None:
        name = "the factor of RandomRotation"
        if is_sequence(factor):
            self._low, self._high = check_bounds(factor, name=name, minimum=-1, maximum=1)
        else:
            self._high = check_float(factor, name=name, minimum=0, maximum=1)
            self._low = -self._high
        modes = (*_PAD_MODES, "constant")
        if fill_mode not in modes:
            raise InvalidInputError(
                "the fill_mode of RandomRotation", received=describe_received(fill_mode), allowed=modes
            )
        self._fill_mode, self._fill_value = fill_mode, _byte(fill_value, of="RandomRotation")

    def apply(self, image: np.ndarray, draws: np.ndarray) -> np.ndarray:
        """See the base class."""
        import PIL.Image  # of the extra `images`

        height, width, num_channels = image.shape
        degrees = 360 * (self._low + (self._high - self._low) * float(draws[0]))
        margins = (0, 0) if self._fill_mode == "constant" else _margins(height, width, math.radians(degrees))
        if any(margins):
            down, across = margins
            image = np.pad(image, ((down, down), (across, across), (0, 0)), mode=_PAD_MODES[self._fill_mode])
        fill = self._fill_value if num_channels == 1 else (self._fill_value,) * num_channels
        turned = to_pillow(image).rotate(degrees, PIL.Image.Resampling.BILINEAR, fillcolor=fill)
        pixels = np.asarray(turned).reshape(*image.shape)
        return pixels[margins[0] : margins[0] + height, margins[1] : margins[1] + width]

    def sufficient_size(self, size: tuple[int, int], draws: np.ndarray) -> None:
        """See the base class; any size is sufficient."""
        del size, draws


@final
class Rescaling:
    """Multiplies and adds, in float32, as ``keras.layers.Rescaling`` does; comes after the steps that work on pixels.

    Args:
        scale: the factor for each value: a number, or one for each channel.
        offset: the number that is added after that: a number, or one for each channel.
    """

    def __init__(self, scale: float | tuple[float, ...], offset: float | tuple[float, ...] = 0.0) -> None:
        self.scale = _numbers(scale, name="the scale of Rescaling")
        self.offset = _numbers(offset, name="the offset of Rescaling")


@final
class Normalization:
    """Subtracts a mean and divides by a standard deviation, as ``keras.layers.Normalization`` does with given values.

    Args:
        mean: the mean of the incoming values, which are 0 to 255 unless an earlier step rescales them: a number, or one
            for each channel.
        variance: the square of the standard deviation of these values: a number, or one for each channel.
    """

    def __init__(self, mean: float | tuple[float, ...], variance: float | tuple[float, ...]) -> None:
        name = "the variance of Normalization"
        squares = _numbers(variance, name=name)
        if not (squares > 0).all():
            raise InvalidInputError(name, received=variance, allowed="more than 0")
        deviation = np.sqrt(squares)
        self.scale = 1 / deviation
        self.offset = -_numbers(mean, name="the mean of Normalization") / deviation


def _cropped(image: np.ndarray, size: tuple[int, int], down: float, across: float) -> np.ndarray:
    height, width = image.shape[:2]
    if height < size[0] or width < size[1]:
        scale = max(size[0] / height, size[1] / width)
        height, width = max(size[0], round(height * scale)), max(size[1], round(width * scale))
        image = resize_image(image, size=(height, width))
    top, left = int(down * (height - size[0] + 1)), int(across * (width - size[1] + 1))
    return image[top : top + size[0], left : left + size[1]]


def _margins(height: int, width: int, angle: float) -> tuple[int, int]:
    """Returns how many pixels a rotated frame reaches beyond an image's edges, at most: vertically, horizontally."""
    sine, cosine = abs(math.sin(angle)), abs(math.cos(angle))
    down = math.ceil((height * cosine + width * sine - height) / 2) + 1
    across = math.ceil((width * cosine + height * sine - width) / 2) + 1
    return max(down, 0), max(across, 0)


def _size(height: Any, width: Any, *, of: str) -> tuple[int, int]:
    size = (
        check_int(height, name=f"the height of {of}", minimum=1),
        check_int(width, name=f"the width of {of}", minimum=1),
    )
    if size[0] * size[1] > MAX_PIXELS:
        raise InvalidInputError(f"the size of {of}", received=f"{height} x {width}", allowed=f"{MAX_PIXELS:,} pixels")
    return size


def _positive_range(value: Any, *, name: str, maximum: float) -> tuple[float, float]:
    bounds = check_bounds(value, name=name, minimum=0, maximum=maximum)
    if not bounds[0]:
        raise InvalidInputError(name, received=value, allowed="more than 0")
    return bounds


def _byte(value: Any, *, of: str) -> int:
    number = check_float(value, name=f"the fill_value of {of}", minimum=0, maximum=255)  # Keras's default is 0.0
    return check_int(
        int(number) if number.is_integer() else value, name=f"the fill_value of {of}", minimum=0, maximum=255
    )


def _numbers(value: Any, *, name: str) -> np.ndarray:
    """Checks a number or one number for each channel; returns float64 of shape () or (num_channels,)."""
    try:
        numbers = np.asarray(value)
    except ValueError:  # rows have different lengths
        numbers = np.empty(0)
    if numbers.dtype.kind not in "iuf" or numbers.ndim > 1 or not numbers.size or not np.isfinite(numbers).all():
        raise InvalidInputError(name, received=describe_received(value), allowed="a number, or one for each channel")
    return numbers.astype(np.float64)
