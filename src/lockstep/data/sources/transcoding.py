"""What is done to an image file before it is packed: nothing but a look, or decoding, resizing and encoding."""

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
    """How images are packed. With neither a size nor a codec the files are kept as they are, and decoded to check them.

    Attributes:
        size: height and width in pixels; None keeps each image's own.
        resizing: "crop" takes the largest part of the middle that has the size's shape, and gives it that size;
            "fit" scales the whole image down until it is no larger than the size, so that images differ in size.
        codec: "jpeg" or "png"; JPEG where only a size is given.
        quality: of JPEGs, 1 to 100; 90 by default.

    Raises:
        InvalidInputError: an attribute is none of these, or the quality is of nothing.
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
                    "a quality (quality) is of JPEGs that are encoded anew",
                    action="give a size (size), or jpeg as the codec (codec)",
                )

    @property
    def keeps_files(self) -> bool:
        """Whether the files' bytes are packed as they are."""
        return self.size is None and self.codec is None

    def to_json(self) -> dict[str, Any]:
        """Returns what a manifest says of it; nothing where the files are kept."""
        if self.keeps_files:
            return {}
        codec = self.codec or "jpeg"
        shape = {} if self.size is None else {"image_size": list(self.size), "resize": self.resizing}
        return {**shape, "codec": codec, **({"quality": self.quality or DEFAULT_QUALITY} if codec == "jpeg" else {})}

    def apply(self, data: bytes) -> bytes:
        """Returns the bytes to pack for an image file.

        Args:
            data: the file: a JPEG or PNG image of any kind. What is encoded anew is RGB, upright, without metadata.

        Raises:
            CorruptDataError: it is no such image, or damaged.
            InvalidInputError: Pillow or simplejpeg is not installed.
        """
        if not data:
            raise CorruptDataError("it is empty")
        if self.keeps_files:
            decode_image(data, min_size=_SMALLEST)  # an eighth of its size takes all of its bytes, and less work
            return data
        orientation = _orientation(data)
        size = self.size
        if size is None:
            image = decode_image(data)
        else:
            # On its side, the file's height is the image's width.
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
    """Returns how a camera says that it was held: Exif's number, 1 (upright) to 8."""
    if _EXIF not in data[:_EXIF_SEARCHED_BYTES]:  # without opening the file a second time
        return 1
    import PIL.Image  # an extra; decoding said so if it is not there

    try:
        with PIL.Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as opened:
            exif: Exif = opened.getexif()
            found = exif.get(_ORIENTATION, 1)
    except Exception:  # Pillow's readers raise what they meet; an orientation that cannot be read is none
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def _upright(image: np.ndarray, orientation: int) -> np.ndarray:
    """Turns an image as its orientation asks (Exif 2.32, tag 0x0112)."""
    if orientation > 4:  # rows are columns
        image = image.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):  # the first column is at the right
        image = image[:, ::-1]
    if orientation in (3, 4, 7, 8):  # the first row is at the bottom
        image = image[::-1]
    return np.ascontiguousarray(image)
