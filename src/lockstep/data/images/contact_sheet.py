"""Contact sheets: one picture with the images of many records and their labels."""

from __future__ import annotations

import io
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, final

import numpy as np

from lockstep.data.images.codec import decode_image, encode_image, image_size, to_pillow
from lockstep.errors import CorruptDataError, InvalidInputError

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

LABEL: Final = "label"
"""The name of the feature with a record's label."""

MAX_IMAGES: Final = 2000
"""The largest number of images on a sheet: more would make a picture that is hard to open."""

_CELL_PIXELS: Final = 96
_GAP_PIXELS: Final = 6
_FONT_PIXELS: Final = 12
_CAPTION_PIXELS: Final = 16
_HEADING_PIXELS: Final = 26
_CAPTION_CHARACTERS: Final = 24
_MAX_COLUMNS: Final = 32
_CHANNELS: Final = (1, 3, 4)
_MAGIC: Final = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")
_BACKGROUND: Final = (250, 250, 250)
_FRAME_COLOR: Final = (205, 205, 205)
_TEXT_COLOR: Final = (20, 20, 20)
_ERROR_COLOR: Final = (190, 30, 30)


@final
@dataclass(frozen=True, kw_only=True)
class Section:
    """Records that are shown together under a heading.

    Attributes:
        heading: the text above the images.
        records: the decoded values of each record, by feature.
        classes: the class names, by the number that is the label; empty if they are not known.
    """

    heading: str
    records: Iterable[Mapping[str, Any]]
    classes: Sequence[str] = ()


@final
@dataclass(frozen=True, kw_only=True)
class _Cell:
    """One image and its caption; the image is None if it cannot be decoded."""

    image: Image | None
    caption: str


def make_contact_sheet(sections: Iterable[Section]) -> bytes:
    """Draws a contact sheet.

    An image is a feature of uint8 with two dimensions (height, width) or three (with 1, 3 or 4 channels), or of bytes
    that begin like a JPEG or a PNG. Large images are scaled down, and small ones are scaled up by whole numbers. An
    image that cannot be decoded is crossed out. The caption is the record's feature `LABEL`: the name of the class if
    it is known, otherwise the value.

    Args:
        sections: the records, in the order in which they are shown.

    Returns:
        The bytes of a PNG file.

    Raises:
        InvalidInputError: If no record has an image, there are more than `MAX_IMAGES`, or Pillow is not installed.
    """
    drawn: list[tuple[str, list[_Cell]]] = []
    seen: set[str] = set()
    num_images = 0
    for section in sections:
        cells: list[_Cell] = []
        for record in section.records:
            seen.update(record)
            cells.extend(_cells_of(record, section.classes))
            if num_images + len(cells) > MAX_IMAGES:
                raise InvalidInputError("a contact sheet of too many images", allowed=f"up to {MAX_IMAGES}")
        if cells:
            drawn.append((section.heading, cells))
            num_images += len(cells)
    if not drawn:
        raise InvalidInputError(
            "no record has an image for a contact sheet",
            received=sorted(seen) or None,
            allowed="a feature of uint8 with two or three dims, or of JPEG or PNG bytes",
        )
    return _draw(drawn)


def is_image(value: Any) -> bool:
    """Whether a feature's value of one record is an image that `make_contact_sheet` shows."""
    return _encoded(value) is not None or _raw(value) is not None


def num_pixels(value: Any) -> int:
    """Returns the number of pixels of an image, without decoding it.

    Args:
        value: the value of a feature for which `is_image` is True.

    Raises:
        CorruptDataError: If the image's header cannot be read.
        InvalidInputError: If Pillow or simplejpeg is not installed.
    """
    encoded, raw = _encoded(value), _raw(value)
    height, width = (0, 0) if raw is None else raw.shape[:2]
    if encoded is not None:
        height, width = image_size(encoded)
    return height * width


def make_thumbnail(value: Any) -> bytes:
    """Returns an image as a small JPEG file, scaled as on a contact sheet.

    Args:
        value: the value of a feature for which `is_image` is True.

    Raises:
        CorruptDataError: If the image cannot be decoded.
        InvalidInputError: If Pillow or simplejpeg is not installed.
    """
    return encode_image(np.asarray(_fit(_pixels_of(value))), quality=85)


def _cells_of(record: Mapping[str, Any], classes: Sequence[str]) -> list[_Cell]:
    label = describe_label(record.get(LABEL), classes)
    images = {name: value for name, value in record.items() if is_image(value)}
    cells: list[_Cell] = []
    for name, value in images.items():
        # If a record has several images, captions name the feature; for a single image, the label is enough.
        caption = f"{label} {name}".strip() if len(images) > 1 or not label else label
        try:
            cells.append(_Cell(image=_fit(_pixels_of(value)), caption=caption))
        except CorruptDataError:
            cells.append(_Cell(image=None, caption=caption))
    return cells


def _pixels_of(value: Any) -> np.ndarray:
    """Returns an image's pixels in the shape (height, width, channels)."""
    encoded = _encoded(value)
    pixels = _raw(value) if encoded is None else decode_image(encoded, min_size=(_CELL_PIXELS, _CELL_PIXELS))
    assert pixels is not None, "it was one when the record was looked at"
    return pixels


def _encoded(value: Any) -> bytes | None:
    """Returns the bytes of a JPEG or PNG; None if the value is something else."""
    if isinstance(value, np.ndarray) and value.dtype == object and value.size == 1:
        value = value.item()
    elif isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value if isinstance(value, bytes) and value.startswith(_MAGIC) else None


def _raw(value: Any) -> np.ndarray | None:
    """Returns pixels in the shape (height, width, channels); None if the value is something else."""
    if not isinstance(value, np.ndarray) or value.dtype != np.uint8 or not value.size:
        return None
    if value.ndim == 2 and min(value.shape) > 1:
        return value[..., np.newaxis]
    return value if value.ndim == 3 and value.shape[2] in _CHANNELS else None


def describe_label(value: Any, classes: Sequence[str]) -> str:
    """Returns a label in a few characters: the name of the class if it is known, otherwise the value.

    Args:
        value: the value of the feature `LABEL`; None if there is none.
        classes: the class names, by the number that is the label; empty if they are not known.
    """
    if value is None:
        return ""
    values = np.asarray(value, dtype=object).reshape(-1).tolist()
    if len(values) != 1:
        return ""
    (label,) = values
    if isinstance(label, bytes):
        text = label.decode("utf-8", errors="replace")
    elif isinstance(label, int | np.integer) and 0 <= label < len(classes):
        text = classes[int(label)]
    else:
        text = f"{label:g}" if isinstance(label, float | np.floating) else f"{label}"
    text = "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)
    return text if len(text) <= _CAPTION_CHARACTERS else text[: _CAPTION_CHARACTERS - 1] + "\N{HORIZONTAL ELLIPSIS}"


def _fit(pixels: np.ndarray) -> Image:
    """Returns an image scaled to fit into a cell, with transparent pixels blended onto the background."""
    image = to_pillow(pixels)
    import PIL.Image  # of the extra `images`; the line before raises an error if it is missing

    if image.mode == "RGBA":
        background = PIL.Image.new("RGBA", image.size, (*_BACKGROUND, 255))
        image = PIL.Image.alpha_composite(background, image)
    image = image.convert("RGB")
    larger = max(image.size)
    if larger <= _CELL_PIXELS:
        factor = _CELL_PIXELS // larger
        return image.resize((image.width * factor, image.height * factor), PIL.Image.Resampling.NEAREST)
    width, height = (max(1, round(side * _CELL_PIXELS / larger)) for side in image.size)
    return image.resize((width, height), PIL.Image.Resampling.LANCZOS)


def _draw(sections: Sequence[tuple[str, Sequence[_Cell]]]) -> bytes:
    import PIL.Image  # of the extra `images`; without it, `_fit` would have raised an error
    import PIL.ImageDraw
    import PIL.ImageFont

    font: Any = PIL.ImageFont.load_default(_FONT_PIXELS)
    if not all(cell.caption.isascii() for _, cells in sections for cell in cells):
        with suppress(OSError):  # Pillow's default font has English letters only; many systems have this one
            font = PIL.ImageFont.truetype("DejaVuSans.ttf", _FONT_PIXELS)
    most = max(len(cells) for _, cells in sections)
    num_columns = min(_MAX_COLUMNS, max(4, math.ceil(math.sqrt(1.6 * most))))
    step_x = _CELL_PIXELS + _GAP_PIXELS
    step_y = step_x + _CAPTION_PIXELS
    num_rows = [math.ceil(len(cells) / num_columns) for _, cells in sections]
    height = _GAP_PIXELS + sum(_HEADING_PIXELS + rows * step_y for rows in num_rows)
    sheet = PIL.Image.new("RGB", (_GAP_PIXELS + num_columns * step_x, height), _BACKGROUND)
    draw = PIL.ImageDraw.Draw(sheet)
    top = _GAP_PIXELS
    for (heading, cells), rows in zip(sections, num_rows, strict=True):
        draw.text((_GAP_PIXELS, top), heading, fill=_TEXT_COLOR, font=font)
        top += _HEADING_PIXELS
        for number, cell in enumerate(cells):
            left = _GAP_PIXELS + number % num_columns * step_x
            upper = top + number // num_columns * step_y
            _draw_cell(draw, sheet, cell, left=left, top=upper, font=font)
        top += rows * step_y
    file = io.BytesIO()
    sheet.save(file, "PNG")
    return file.getvalue()


def _draw_cell(draw: ImageDraw, sheet: Image, cell: _Cell, *, left: int, top: int, font: Any) -> None:
    right, bottom = left + _CELL_PIXELS - 1, top + _CELL_PIXELS - 1
    draw.rectangle((left, top, right, bottom), outline=_FRAME_COLOR if cell.image is not None else _ERROR_COLOR)
    if cell.image is None:
        draw.line((left, top, right, bottom), fill=_ERROR_COLOR)
        draw.line((left, bottom, right, top), fill=_ERROR_COLOR)
    else:
        free_x, free_y = (_CELL_PIXELS - side for side in cell.image.size)
        sheet.paste(cell.image, (left + free_x // 2, top + free_y // 2))
    shown, caption = cell.caption, cell.caption
    while caption and draw.textlength(shown, font=font) > _CELL_PIXELS:
        caption = caption[:-1]
        shown = caption + "\N{HORIZONTAL ELLIPSIS}"
    middle = left + (_CELL_PIXELS - draw.textlength(shown, font=font)) / 2
    draw.text((middle, bottom + 2), shown, fill=_TEXT_COLOR, font=font)
