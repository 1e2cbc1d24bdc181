import io
from typing import Any

import numpy as np
import PIL.Image
import pytest

from lockstep.data.images import contact_sheet, encode_image
from lockstep.data.images.contact_sheet import Section, is_image, make_contact_sheet
from lockstep.errors import InvalidInputError

GREY, COLOURED = np.full((28, 28), 120, np.uint8), np.full((40, 20, 3), (250, 10, 20), np.uint8)


def draw(*sections: Section) -> np.ndarray:
    return np.asarray(PIL.Image.open(io.BytesIO(make_contact_sheet(sections)), formats=["PNG"]).convert("RGB"))


def boxes(sheet: np.ndarray, colour: tuple[int, int, int]) -> int:
    """How many separate areas of a colour there are along the middle of the first row of images."""
    row = (sheet[6 + 26 + 48] == colour).all(axis=-1)
    return int(np.count_nonzero(row[1:] & ~row[:-1]))


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (GREY, True),
        (COLOURED, True),
        (np.zeros((5, 5, 4), np.uint8), True),
        (encode_image(COLOURED, codec="jpeg"), True),
        (np.array(encode_image(COLOURED, codec="png"), dtype=object), True),
        ([encode_image(GREY)], True),
        (np.zeros((5, 5, 2), np.uint8), False),
        (np.zeros((5, 5), np.float32), False),
        (np.zeros(25, np.uint8), False),
        (np.zeros((0, 5), np.uint8), False),
        (np.array([b"a", b"b"], dtype=object), False),
        (b"text", False),
        (3, False),
    ],
)
def test_what_is_an_image(value: Any, expected: bool) -> None:
    assert is_image(value) == expected


def test_every_image_is_there_in_its_colour() -> None:
    records = [{"image": COLOURED, "label": 1}, {"image": GREY}, {"image": COLOURED}]
    sheet = draw(Section(heading="three", records=records))
    assert boxes(sheet, (250, 10, 20)) == 2
    assert boxes(sheet, (120, 120, 120)) == 1
    cells = sheet[6 + 26 : 6 + 26 + 96]  # without the text
    assert (cells == (120, 120, 120)).all(axis=-1).sum() == (28 * 3) ** 2, "pixels that are few are shown large"
    assert (sheet == (250, 10, 20)).all(axis=-1).sum() == 2 * 40 * 20 * 4


def test_encoded_images_are_decoded_and_scaled_down() -> None:
    image = np.full((200, 400, 3), (0, 0, 254), np.uint8)
    sheet = draw(Section(heading="x", records=[{"image": encode_image(image, codec="png")}]))
    assert (sheet == (0, 0, 254)).all(axis=-1).sum() == 96 * 48


def test_a_damaged_image_is_crossed_out_and_the_others_are_shown() -> None:
    records = [{"image": encode_image(COLOURED)[:100], "label": 0}, {"image": GREY}]
    sheet = draw(Section(heading="x", records=records))
    assert boxes(sheet, (120, 120, 120)) == 1
    assert (sheet == (190, 30, 30)).all(axis=-1).sum() > 4 * 90


def captions(monkeypatch: pytest.MonkeyPatch, record: dict[str, Any], *classes: str) -> list[str]:
    found: list[str] = []
    original = contact_sheet._draw_cell

    def keep(draw: Any, sheet: Any, cell: Any, **where: Any) -> None:
        found.append(cell.caption)
        original(draw, sheet, cell, **where)

    monkeypatch.setattr(contact_sheet, "_draw_cell", keep)
    draw(Section(heading="x", records=[record], classes=classes))
    return found


@pytest.mark.parametrize(
    ("label", "caption"),
    [
        (np.int64(1), "dog"),
        (np.array(0), "cat"),
        (np.array([1]), "dog"),
        (7, "7"),
        (-1, "-1"),
        (b"gr\xc3\xbcn", "grün"),
        (np.array([b"x\n\xff"], dtype=object), "x\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}"),
        (0.25, "0.25"),
        (b"a" * 100, "a" * 23 + "\N{HORIZONTAL ELLIPSIS}"),
        (np.array([1, 2]), "image"),
        (None, "image"),
    ],
)
def test_labels_are_said_by_their_class(label: Any, caption: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert captions(monkeypatch, {"image": GREY, "label": label}, "cat", "dog") == [caption]


def test_several_images_of_a_record_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert captions(monkeypatch, {"left": GREY, "right": COLOURED, "label": 3}) == ["3 left", "3 right"]


def test_bad_input_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"no record has an image for a contact sheet; received \['label'\]"):
        make_contact_sheet([Section(heading="x", records=[{"label": 1}])])
    with pytest.raises(InvalidInputError, match="no record has an image for a contact sheet; allowed: a feature of"):
        make_contact_sheet([])
    many = ({"image": GREY} for _ in range(contact_sheet.MAX_IMAGES + 1))
    with pytest.raises(InvalidInputError, match="a contact sheet of too many images; allowed: up to 2000"):
        make_contact_sheet([Section(heading="x", records=many)])
