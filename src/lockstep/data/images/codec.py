"""Decodes, encodes and resizes images: JPEG and PNG files, and arrays.

JPEGs are decoded by libjpeg-turbo (through simplejpeg), with its accurate inverse DCT and smooth upsampling of colour:
the pixels are those of ``djpeg -dct int``, bit for bit. Pillow decodes everything else, and also JPEGs for which
libjpeg-turbo gives an error or a warning (CMYK, bytes between markers, files that are cut off), because Pillow
distinguishes harmless from damaged ones. Decoding releases the GIL, so several threads decode in parallel.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

import numpy as np

from lockstep.data.arguments import check_bounds, check_int, describe_received, int_or_none, is_sequence
from lockstep.data.examples.example import names_of_example
from lockstep.data.images.formats import format_of
from lockstep.errors import CorruptDataError, InvalidInputError, LockstepError

if TYPE_CHECKING:
    from PIL.Image import Image

MAX_PIXELS: Final = 1 << 28
"""The most pixels that an image may have: a header may state any size, and the array is created before data is read."""

Codec = Literal["jpeg", "png"]

_JPEG: Final = b"\xff\xd8"
_COLORSPACES: Final = {1: "GRAY", 3: "RGB"}
_MODES: Final = {1: "L", 3: "RGB", 4: "RGBA"}
_MAX_REDUCTION: Final = 8


def decode_image(
    data: bytes,
    *,
    num_channels: int = 3,
    min_size: tuple[int, int] = (0, 0),
    out: np.ndarray | None = None,
    reverse_channels: bool = False,
) -> np.ndarray:
    """Decodes one image.

    Args:
        data: the bytes of a JPEG or PNG file.
        num_channels: 1 (grey), 3 (red, green, blue) or 4 (with alpha, which is 255 for JPEGs); the image is converted.
            Without an alpha channel, transparency is dropped, not blended, as by ``tf.io.decode_png``.
        min_size: the smallest height and width that are sufficient. A larger JPEG is decoded at the smallest number of
            eighths of its size that is at least as large, which costs less; (0, 0) decodes at full size.
        out: a contiguous uint8 array for the pixels; used only if its size is exactly that of the image.
        reverse_channels: whether the channels are in the opposite order. (In a mirrored view of such an image, all
            bytes of a row are in reverse order, which NumPy copies much faster.)

    Returns:
        The pixels, uint8 of shape (height, width, num_channels); a view of ``out`` if that was used.

    Raises:
        CorruptDataError: If the data is not such an image, is cut off or damaged, or has more than `MAX_PIXELS`.
        InvalidInputError: If an argument is not valid, or Pillow or simplejpeg is not installed.
    """
    data = _check_file(data)
    num_channels = check_num_channels(num_channels)
    min_size = _check_pair(min_size, name="min_size", minimum=0)
    if out is not None and not (isinstance(out, np.ndarray) and out.dtype == np.uint8):
        raise InvalidInputError("the argument out", received=out, allowed="an array of uint8")
    if data[:2] == _JPEG and num_channels in _COLORSPACES:
        image = _decode_jpeg(data, num_channels=num_channels, min_size=min_size, out=out, reverse=reverse_channels)
        if image is not None:
            return image
    with _open(data) as opened:
        _reduce(opened, min_size)
        pixels = np.asarray(_load_pixels(opened, _MODES[num_channels]))
    pixels = pixels.reshape(*pixels.shape[:2], num_channels)
    return pixels[..., ::-1] if reverse_channels else pixels


def image_size(data: bytes) -> tuple[int, int]:
    """Reads height and width from an image's header.

    Raises:
        CorruptDataError: If the data is not a JPEG or PNG, or is a PNG with more than `MAX_PIXELS`.
        InvalidInputError: If the data is not bytes, or Pillow or simplejpeg is not installed.
    """
    data = _check_file(data)
    if data[:2] == _JPEG:
        try:
            height, width, *_ = _simplejpeg().decode_jpeg_header(data, strict=False)
        except (ValueError, KeyError):  # KeyError: the header does not state its colour space
            pass
        else:
            return height, width
    with _open(data) as opened:
        return opened.height, opened.width


def encode_image(image: np.ndarray, *, codec: Codec = "jpeg", quality: int = 90) -> bytes:
    """Encodes one image.

    Args:
        image: the pixels, uint8 of shape (height, width, channels) or (height, width), with 1 or 3 channels, or 4 for
            PNG.
        codec: "jpeg" or "png".
        quality: the quality of a JPEG, 1 to 100. Colours are stored at half the resolution (4:2:0), as is usual for
            photographs.

    Raises:
        InvalidInputError: If an argument is not valid, or Pillow or simplejpeg is not installed.
    """
    if codec not in get_args(Codec):
        raise InvalidInputError("the codec of images", received=describe_received(codec), allowed=get_args(Codec))
    quality = check_int(quality, name="the quality of JPEGs", minimum=1, maximum=100)
    if not isinstance(image, np.ndarray):
        raise InvalidInputError("an image to encode", received=describe_received(image), allowed="an array of uint8")
    pixels = image[..., np.newaxis] if image.ndim == 2 else image
    allowed = (1, 3) if codec == "jpeg" else tuple(_MODES)
    if pixels.ndim != 3 or pixels.dtype != np.uint8 or pixels.shape[2] not in allowed or not pixels.size:
        raise InvalidInputError(
            f"an image to encode as {codec}",
            received=f"{image.dtype} of shape {image.shape}",
            allowed=f"uint8 of shape (height, width, channels), channels one of {', '.join(map(str, allowed))}",
        )
    num_channels = pixels.shape[2]
    if codec == "jpeg":
        space, sampling = _COLORSPACES[num_channels], "Gray" if num_channels == 1 else "420"
        encode = _simplejpeg().encode_jpeg
        return encode(np.ascontiguousarray(pixels), quality=quality, colorspace=space, colorsubsampling=sampling)
    file = io.BytesIO()
    _pillow().fromarray(pixels[..., 0] if num_channels == 1 else pixels).save(file, "PNG")
    return file.getvalue()


def resize_image(image: np.ndarray, *, size: tuple[int, int], box: tuple[float, ...] | None = None) -> np.ndarray:
    """Resizes an image bilinearly, as ``tf.image.resize`` with ``antialias``: a triangle filter as wide as the scale.

    Args:
        image: the pixels, uint8 of shape (height, width, channels), with 1, 3 or 4 channels.
        size: the height and width of the result, in pixels.
        box: the top, left, bottom and right edges of the part to resize, in pixels from the upper left corner; the
            whole image by default. Near the edges, the filter also uses pixels outside the box.

    Returns:
        The pixels, uint8 of shape (*size, channels); the image itself if it has that size already.

    Raises:
        InvalidInputError: If an argument is not valid, or Pillow is not installed.
    """
    if not isinstance(image, np.ndarray) or image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] not in _MODES:
        raise InvalidInputError(
            "an image to resize",
            received=f"{image.dtype} of shape {image.shape}"
            if isinstance(image, np.ndarray)
            else describe_received(image),
            allowed="uint8 of shape (height, width, channels), channels one of 1, 3, 4",
        )
    size = _check_pair(size, name="the size to resize to", minimum=1)
    height, width, num_channels = image.shape
    whole = (0, 0, height, width)
    top, left, bottom, right = whole if box is None else _check_box(box, height, width)
    if (top, left, bottom, right) == whole and size == (height, width):
        return image
    opened = to_pillow(image)
    pillow = _pillow()
    resized = opened.resize((size[1], size[0]), pillow.Resampling.BILINEAR, box=(left, top, right, bottom))
    return np.asarray(resized).reshape(*size, num_channels)


def to_pillow(image: np.ndarray) -> Image:
    """Converts pixels to an image of Pillow's.

    Args:
        image: the pixels, uint8 of shape (height, width, channels), with 1, 3 or 4 channels.
    """
    return _pillow().fromarray(image[..., 0] if image.shape[2] == 1 else image)


def _decode_jpeg(
    data: bytes, *, num_channels: int, min_size: tuple[int, int], out: np.ndarray | None, reverse: bool
) -> np.ndarray | None:
    """Decodes a JPEG by libjpeg-turbo; returns None if that gives any error or warning, so that Pillow takes over."""
    simplejpeg = _simplejpeg()
    space = "BGR" if reverse and num_channels == 3 else _COLORSPACES[num_channels]
    height, width = min_size
    if not (height and width):
        height = width = 0
    arguments: dict[str, Any] = {"min_height": height, "min_width": width}
    try:
        found = simplejpeg.decode_jpeg_header(data, **arguments)
        if found[0] * found[1] > MAX_PIXELS:
            return None  # the caller's second way, by Pillow, raises the error
        fits = out is not None and found[0] * found[1] * num_channels == out.size
        return simplejpeg.decode_jpeg(data, colorspace=space, buffer=out if fits else None, **arguments)
    except (ValueError, KeyError):  # as above
        return None


def _open(data: bytes) -> Image:
    _pillow()
    from PIL.JpegImagePlugin import JpegImageFile
    from PIL.PngImagePlugin import PngImageFile

    # Not by `PIL.Image.open`: it warns about a pixel limit of its own, and a single thread cannot ignore warnings.
    reader = JpegImageFile if data[:2] == _JPEG else PngImageFile
    try:
        opened = reader(io.BytesIO(data))
    except Exception as error:  # Pillow raises OSError, ValueError, SyntaxError, struct.error and more
        raise _unreadable(data) from error
    if opened.width * opened.height > MAX_PIXELS:
        raise CorruptDataError(
            "an image has too many pixels", received=f"{opened.height} x {opened.width}", allowed=f"{MAX_PIXELS:,}"
        )
    return opened


def _reduce(opened: Image, min_size: tuple[int, int]) -> None:
    """Sets the size at which Pillow decodes a JPEG; does nothing for a PNG."""
    if opened.format != "JPEG" or not all(min_size):
        return
    factor = _MAX_REDUCTION
    while factor > 1 and (-(-opened.height // factor) < min_size[0] or -(-opened.width // factor) < min_size[1]):
        factor //= 2
    opened.draft(None, (-(-opened.width // factor), -(-opened.height // factor)))


def _load_pixels(opened: Image, mode: str) -> Image:
    try:
        opened.load()
        if opened.mode.startswith("I;16"):  # 16 bits: the upper eight, as in TensorFlow's decoder
            return _pillow().fromarray((np.asarray(opened) >> 8).astype(np.uint8)).convert(mode)
        # The palette contains the transparency; converting to RGBA first keeps the colours of transparent pixels.
        return (opened.convert("RGBA") if opened.mode == "P" else opened).convert(mode)
    except LockstepError:
        raise
    except Exception as error:
        raise CorruptDataError(f"the {opened.format} image is damaged: {error}") from error


def _unreadable(data: bytes) -> CorruptDataError:
    what, allowed = "not an image that can be read", "JPEG or PNG"
    names = names_of_example(data)
    if names:
        return CorruptDataError(
            what,
            received=f"a tf.train.Example with {', '.join(names)}",
            allowed=allowed,
            action="parse the record first: lockstep.data.ExampleParser takes the image's bytes out of it by "
            '{"image": FixedLenFeature((), bytes)}',
        )
    name = format_of(data)
    if name is not None:
        received = f"{name}, {len(data):,} bytes"
    else:
        received = f"{len(data)} bytes that begin with {data[:8].hex(' ')}" if data else "no bytes"
    return CorruptDataError(what, received=received, allowed=allowed)


def check_num_channels(value: Any) -> int:
    """Checks a number of channels, and returns it.

    Raises:
        InvalidInputError: If the number is not 1, 3 or 4.
    """
    number = int_or_none(value)
    if number not in _MODES:
        raise InvalidInputError("the number of channels", received=describe_received(value), allowed="1, 3, 4")
    return number


def _check_file(value: Any) -> bytes:
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)  # without a copy if it is bytes
    raise InvalidInputError("an image file", received=describe_received(value), allowed="the bytes of a JPEG or PNG")


def _check_pair(value: Any, *, name: str, minimum: int) -> tuple[int, int]:
    if is_sequence(value) and len(value) == 2:
        height, width = int_or_none(value[0]), int_or_none(value[1])
        if height is not None and width is not None and min(height, width) >= minimum:
            return height, width
    allowed = f"a height and a width, whole numbers, {minimum} or more"
    raise InvalidInputError(name, received=describe_received(value), allowed=allowed)


def _check_box(value: Any, height: int, width: int) -> tuple[float, float, float, float]:
    name = "the part of an image"
    if not is_sequence(value) or len(value) != 4:
        raise InvalidInputError(
            name, received=describe_received(value), allowed="its top, left, bottom and right edges"
        )
    top, bottom = check_bounds(value[0::2], name=f"{name}: top and bottom", minimum=0, maximum=height)
    left, right = check_bounds(value[1::2], name=f"{name}: left and right", minimum=0, maximum=width)
    return top, left, bottom, right


def _pillow() -> Any:
    try:
        import PIL.Image  # of the extra `images`
    except ImportError:
        raise _missing("Pillow") from None
    return PIL.Image


def _simplejpeg() -> Any:
    try:
        import simplejpeg  # of the extra `images`
    except ImportError:
        raise _missing("simplejpeg") from None
    return simplejpeg


def _missing(package: str) -> InvalidInputError:
    return InvalidInputError(
        f"images need the package {package}, which is not installed", action="run: pip install 'lockstep-train[images]'"
    )
