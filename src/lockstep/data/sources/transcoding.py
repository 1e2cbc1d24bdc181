"""Prepares image files for packing: only checks them, or decodes, resizes and encodes them again."""

from __future__ import annotations

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, final, get_args

import numpy as np

from lockstep.data.images.codec import Codec, decode_image, encode_image, resize_image
from lockstep.errors import CorruptDataError, InvalidInputError

if TYPE_CHECKING:
    from PIL.Image import Exif

Resizing = Literal["crop", "fit"]
DEFAULT_QUALITY: Final = 90

_EXIF: Final = b"Exif\0\0"
_EXIF_SEARCHED_BYTES: Final = 1 << 17
_ORIENTATION: Final = 0x0112
_SMALLEST: Final = (1, 1)


@final
@dataclass(frozen=True, kw_only=True)
class Transcoding:
    """How images are packed. With neither a size nor a codec, the files are decoded to check them, but kept unchanged.

    Attributes:
        size: the height and width in pixels; None keeps the size of each image.
        resizing: the method of resizing. "crop" takes the largest centered part that has the aspect ratio of ``size``,
            and resizes it to ``size``. "fit" scales down the whole image until it fits into ``size``, so the sizes of
            images differ.
        codec: the codec, "jpeg" or "png"; "jpeg" if only a size is given.
        quality: the quality of JPEGs, 1 to 100; 90 by default.

    Raises:
        InvalidInputError: an attribute is out of range, or a quality is given although no JPEG is encoded.
    """

    size: tuple[int, int] | None = None
    resizing: Resizing = "crop"
    codec: Codec | None = None
    quality: int | None = None

    def __post_init__(self) -> None:
        if self.size is not None and not (len(self.size) == 2 and all(1 <= side <= 1 << 14 for side in self.size)):
            raise InvalidInputError(
                "the size of images (size)", received=self.size, allowed="height and width, 1 to 16384"
            )
        if self.resizing not in get_args(Resizing):
            raise InvalidInputError(
                "how images are resized (resizing)", received=self.resizing, allowed=get_args(Resizing)
            )
        if self.codec is not None and self.codec not in get_args(Codec):
            raise InvalidInputError("the codec of images (codec)", received=self.codec, allowed=get_args(Codec))
        if self.quality is not None:
            if not 1 <= self.quality <= 100:
                raise InvalidInputError("the quality of JPEGs (quality)", received=self.quality, allowed="1 to 100")
            if self.keeps_files or self.codec == "png":
                raise InvalidInputError(
                    "a quality (quality) applies only to images encoded as JPEG",
                    action="give a size (size), or jpeg as the codec (codec)",
                )

    @property
    def keeps_files(self) -> bool:
        """Whether the files are packed unchanged."""
        return self.size is None and self.codec is None

    def to_json(self) -> dict[str, Any]:
        """Returns the options for the manifest; an empty dictionary if the files are kept unchanged."""
        if self.keeps_files:
            return {}
        codec = self.codec or "jpeg"
        shape = {} if self.size is None else {"image_size": list(self.size), "resize": self.resizing}
        return {**shape, "codec": codec, **({"quality": self.quality or DEFAULT_QUALITY} if codec == "jpeg" else {})}

    def apply(self, data: bytes) -> bytes:
        """Returns the bytes to pack for an image file.

        An image that is encoded again becomes RGB and upright, and loses its metadata.

        Args:
            data: the bytes of the file, a JPEG or PNG image of any kind.

        Raises:
            CorruptDataError: the file is not a JPEG or PNG image, or it is damaged.
            InvalidInputError: Pillow or simplejpeg is not installed.
        """
        if not data:
            raise CorruptDataError("it is empty")
        if self.keeps_files:
            decode_image(data, min_size=_SMALLEST)  # decoding at 1/8 scale reads all bytes with less work
            return data
        orientation = _orientation(data)
        size = self.size
        if size is None:
            image = decode_image(data)
        else:
            # In the orientations 5 to 8, height and width are swapped in the file.
            image = decode_image(data, min_size=size if orientation <= 4 else (size[1], size[0]))
        image = _upright(image, orientation)
        if size is not None:
            image = _crop(image, size) if self.resizing == "crop" else _fit(image, size)
        return encode_image(image, codec=self.codec or "jpeg", quality=self.quality or DEFAULT_QUALITY)


def _crop(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    height, width = image.shape[:2]
    scale = min(height / size[0], width / size[1])
    top, left = (height - scale * size[0]) / 2, (width - scale * size[1]) / 2
    box = (max(top, 0.0), max(left, 0.0), min(height - top, float(height)), min(width - left, float(width)))
    return resize_image(image, size=size, box=box)


def _fit(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    height, width = image.shape[:2]
    scale = min(size[0] / height, size[1] / width, 1.0)
    return resize_image(image, size=(max(1, round(height * scale)), max(1, round(width * scale))))


def _orientation(data: bytes) -> int:
    """Returns the Exif orientation of an image, 1 (upright) to 8; 1 if it has none."""
    if _EXIF not in data[:_EXIF_SEARCHED_BYTES]:  # avoids opening the file a second time
        return 1
    import PIL.Image  # an extra; decoding has already raised if it is missing

    try:
        with PIL.Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as opened:
            exif: Exif = opened.getexif()
            found = exif.get(_ORIENTATION, 1)
    except Exception:  # Pillow raises many kinds; an unreadable orientation counts as none
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turns an image upright according to its orientation (Exif 2.32, tag 0x0112)."""
    if orientation > 4:  # rows and columns are swapped
        image = image.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):  # the first column is at the right
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):  # the first row is at the bottom
        image = image[::-1]
    return np.ascontiguousarray(image)
