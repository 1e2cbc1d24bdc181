"""JPEG and PNG in and out."""

import io
import struct
import warnings
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.images.photo import photo

from lockstep.data import encode_example
from lockstep.data.images import codec
from lockstep.data.images.codec import decode_image, encode_image, image_size, resize_image
from lockstep.errors import CorruptDataError, InvalidInputError

PHOTO: np.ndarray = photo(320, 480)


def saved(image: np.ndarray | Image.Image, kind: str = "JPEG", **options: Any) -> bytes:
    file = io.BytesIO()
    (image if isinstance(image, Image.Image) else Image.fromarray(image)).save(file, kind, **options)
    return file.getvalue()


def by_pillow(data: bytes, mode: str = "RGB") -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(data)).convert(mode))


@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("progressive", [False, True])
def test_pixels_are_those_of_the_accurate_decoder(subsampling: int, progressive: bool) -> None:
    data = saved(PHOTO, quality=88, subsampling=subsampling, progressive=progressive)
    np.testing.assert_array_equal(decode_image(data), by_pillow(data))  # Pillow's default is libjpeg's accurate way


def test_grey_and_opacity() -> None:
    data = saved(PHOTO)
    grey = decode_image(data, num_channels=1)
    assert grey.shape == (320, 480, 1)
    assert np.abs(grey[..., 0].astype(int) - by_pillow(data, "L")).mean() < 0.5
    whole = decode_image(data, num_channels=4)
    assert whole.shape == (320, 480, 4)
    assert (whole[..., 3] == 255).all()
    assert decode_image(saved(PHOTO[..., 0])).shape == (320, 480, 3)


def test_png_is_kept_to_the_bit() -> None:
    for channels in (1, 3, 4):
        image = np.random.default_rng(0).integers(0, 256, (13, 17, channels), np.uint8)
        data = encode_image(image, codec="png")
        np.testing.assert_array_equal(decode_image(data, num_channels=channels), image)
    wide = Image.fromarray(np.arange(0, 60000, 1000, dtype=np.uint16).reshape(6, 10))
    np.testing.assert_array_equal(
        decode_image(saved(wide, "PNG"), num_channels=1)[..., 0], np.asarray(wide).astype(int) >> 8
    )


def test_a_palette_and_its_transparency() -> None:
    image = Image.fromarray(PHOTO[:20, :20]).quantize(8)
    data = saved(image, "PNG", transparency=0)
    np.testing.assert_array_equal(decode_image(data, num_channels=4), np.asarray(image_with_alpha(data)))
    np.testing.assert_array_equal(decode_image(data), np.asarray(image_with_alpha(data))[..., :3])


def image_with_alpha(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data)).convert("RGBA")


def test_jpegs_that_are_unusual_but_whole() -> None:
    cmyk = saved(Image.fromarray(PHOTO).convert("CMYK"), quality=95)
    assert np.abs(decode_image(cmyk).astype(int) - PHOTO).mean() < 4
    plain = saved(PHOTO)
    end = plain.rindex(b"\xff\xd9")
    extraneous = plain[:end] + b"\x00" * 20 + plain[end:]
    np.testing.assert_array_equal(decode_image(extraneous), decode_image(plain))
    np.testing.assert_array_equal(decode_image(plain + b"more behind the end"), decode_image(plain))


@pytest.mark.parametrize("part", [0.0, 0.01, 0.3, 0.9, 0.999])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_what_is_cut_off_is_damaged(kind: str, part: float) -> None:
    data = saved(PHOTO, kind)
    with pytest.raises(CorruptDataError):
        decode_image(data[: int(len(data) * part)])


@pytest.mark.parametrize("data", [b"", b"\xff\xd8", b"GIF89a" + b"\0" * 50, b"\x89PNG\r\n\x1a\n", b"BM" + b"\0" * 90])
def test_what_is_no_image(data: bytes) -> None:
    with pytest.raises(CorruptDataError, match="not an image that can be read; received '"):
        decode_image(data)
    with pytest.raises(CorruptDataError, match="not an image that can be read"):
        image_size(data)


def test_other_formats_are_not_opened() -> None:
    with pytest.raises(CorruptDataError, match="allowed: JPEG or PNG"):
        decode_image(saved(PHOTO, "TIFF"))


def test_damage_within_a_png_is_found() -> None:
    data = bytearray(saved(PHOTO, "PNG"))
    data[len(data) // 2] ^= 0xFF
    with pytest.raises(CorruptDataError):
        decode_image(bytes(data))


def test_a_header_that_lies_takes_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codec, "MAX_PIXELS", 320 * 480 - 1)
    for data in (saved(PHOTO), saved(PHOTO, "PNG")):
        with pytest.raises(CorruptDataError, match="too many pixels; received '320 x 480'; allowed: 153,599"):
            decode_image(data)
    huge = bytearray(saved(PHOTO, "PNG"))
    huge[16:24] = struct.pack(">II", 100_000, 100_000)
    with pytest.raises(CorruptDataError):
        decode_image(bytes(huge))


@pytest.mark.parametrize(
    ("min_size", "expected"),
    [
        ((0, 0), (320, 480)),
        ((320, 1), (320, 480)),
        ((160, 200), (160, 240)),
        ((100, 100), (120, 180)),
        ((1, 1), (40, 60)),
    ],
)
def test_a_part_of_the_size(min_size: tuple[int, int], expected: tuple[int, int]) -> None:
    data = saved(PHOTO)
    small = decode_image(data, min_size=min_size)
    assert small.shape == (*expected, 3)
    whole = resize_image(decode_image(data), size=expected)
    assert np.abs(small.astype(int) - whole).mean() < 6
    assert decode_image(saved(PHOTO, "PNG"), min_size=min_size).shape == (320, 480, 3)


def test_cmyk_to_a_part_of_the_size() -> None:
    data = saved(Image.fromarray(PHOTO).convert("CMYK"))
    assert decode_image(data, min_size=(100, 100)).shape in ((120, 180, 3), (160, 240, 3))


def test_memory_that_fits_is_used() -> None:
    data = saved(PHOTO)
    out = np.zeros((320, 480, 3), np.uint8)
    image = decode_image(data, out=out)
    assert np.shares_memory(image, out)
    np.testing.assert_array_equal(out, by_pillow(data))
    turned = np.zeros((480, 320, 3), np.uint8)
    assert decode_image(data, out=turned).shape == (320, 480, 3)
    small = np.zeros((3, 3, 3), np.uint8)
    assert not np.shares_memory(decode_image(data, out=small), small)


@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
@pytest.mark.parametrize("num_channels", [1, 3, 4])
def test_reversed_channels(kind: str, num_channels: int) -> None:
    data = saved(PHOTO, kind)
    plain = decode_image(data, num_channels=num_channels)
    np.testing.assert_array_equal(
        decode_image(data, num_channels=num_channels, reverse_channels=True), plain[..., ::-1]
    )


def test_sizes() -> None:
    assert image_size(saved(PHOTO)) == (320, 480)
    assert image_size(saved(PHOTO, "PNG")) == (320, 480)


def test_encoding() -> None:
    sizes = [len(encode_image(PHOTO, quality=quality)) for quality in (30, 60, 90)]
    assert sizes == sorted(sizes)
    assert np.abs(decode_image(encode_image(PHOTO, quality=90)).astype(int) - PHOTO).mean() < 4
    assert decode_image(encode_image(PHOTO[..., 0])).shape == (320, 480, 3)
    assert image_size(encode_image(PHOTO[..., :1], codec="png")) == (320, 480)


@pytest.mark.parametrize(
    ("image", "options", "message"),
    [
        (PHOTO.astype(np.float32), {}, "received 'float32 of shape"),
        (np.zeros((4, 4, 4), np.uint8), {}, "channels one of 1, 3"),
        (np.zeros((4, 4, 2), np.uint8), {"codec": "png"}, "channels one of 1, 3, 4"),
        (np.zeros((0, 4, 3), np.uint8), {}, "an image to encode"),
        (PHOTO, {"codec": "webp"}, "the codec of images; received 'webp'; allowed: jpeg, png"),
        (PHOTO, {"quality": 0}, "the quality of JPEGs; received 0; allowed: a whole number, 1 to 100"),
    ],
)
def test_what_cannot_be_encoded(image: np.ndarray, options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        encode_image(image, **options)
    with pytest.raises(InvalidInputError, match="the number of channels; received 2; allowed: 1, 3, 4"):
        decode_image(b"", num_channels=2)


@pytest.mark.parametrize("given", [None, "abc", 5, np.zeros(3), [b"a"]], ids=["None", "text", "int", "array", "list"])
def test_what_is_no_file_of_an_image(given: Any) -> None:
    for read in (decode_image, image_size):
        with pytest.raises(InvalidInputError, match=r"an image file; received .*; allowed: the bytes of a JPEG or PNG"):
            read(given)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_channels": 2}, "the number of channels; received 2; allowed: 1, 3, 4"),
        ({"num_channels": True}, "the number of channels; received True"),
        ({"num_channels": "3"}, "the number of channels; received '3'"),
        ({"num_channels": None}, "the number of channels; received 'None'"),
        ({"min_size": 5}, "min_size; received 5; allowed: a height and a width, whole numbers, 0 or more"),
        ({"min_size": (-1, 3)}, r"min_size; received \(-1, 3\)"),
        ({"min_size": ("a", 1)}, r"min_size; received \('a', 1\)"),
        ({"out": 5}, "the argument out; received 5; allowed: an array of uint8"),
    ],
)
def test_arguments_of_decoding_are_checked(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        decode_image(encode_image(np.zeros((4, 4, 3), np.uint8)), **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": 3}, "the size to resize to; received 3; allowed: a height and a width, whole numbers, 1 or more"),
        ({"size": (0, 2)}, r"the size to resize to; received \(0, 2\)"),
        (
            {"size": (2, 2), "box": (1, 2)},
            "the part of an image; received .*; allowed: its top, left, bottom and right",
        ),
        ({"size": (2, 2), "box": (0, 0, 9, 4)}, "the part of an image: top and bottom; received .* each 0 to 4"),
        ({"size": (2, 2), "image": [[1]]}, "an image to resize; received .*; allowed: uint8 of shape"),
        ({"size": (2, 2), "image": np.zeros((4, 4, 2), np.uint8)}, r"an image to resize; received 'uint8 of shape \(4"),
    ],
)
def test_arguments_of_resizing_are_checked(options: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"image": np.zeros((4, 4, 3), np.uint8)} | options
    with pytest.raises(InvalidInputError, match=message):
        resize_image(**given)


def test_a_record_that_is_not_parsed_is_no_image() -> None:
    record = encode_example({"image": encode_image(np.zeros((4, 4, 3), np.uint8)), "label": 3})
    with pytest.raises(CorruptDataError) as caught:
        decode_image(record)
    assert str(caught.value) == (
        "not an image that can be read; received 'a tf.train.Example with image, label'; allowed: JPEG or PNG; "
        "parse the record first: lockstep.data.ExampleParser takes the image's bytes out of it by "
        '{"image": FixedLenFeature((), bytes)}'
    )


def test_resizing_takes_means() -> None:
    image = np.arange(16, dtype=np.uint8).reshape(4, 4, 1) * 10
    assert resize_image(image, size=(4, 4)) is image
    np.testing.assert_allclose(resize_image(image, size=(1, 1))[0, 0, 0], image.mean(), atol=1)
    halves = np.repeat(np.array([0, 200], np.uint8), 20)[np.newaxis, :, np.newaxis].repeat(40, 0)
    assert resize_image(halves, size=(2, 2), box=(5, 26, 35, 40)).tolist() == [[[200], [200]]] * 2
    assert resize_image(PHOTO, size=(7, 9)).shape == (7, 9, 3)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "simplejpeg", None)
    with pytest.raises(InvalidInputError, match=r"the package simplejpeg, .*pip install 'lockstep-train\[images\]'"):
        decode_image(b"\xff\xd8\xff")
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(InvalidInputError, match=r"the package Pillow, .*pip install 'lockstep-train\[images\]'"):
        decode_image(b"\x89PNG")


def test_what_an_image_claims_is_held_to_one_bound() -> None:
    def claiming(side: int) -> bytes:
        data = bytearray(encode_image(PHOTO[:4, :4], codec="png"))
        data[16:24] = struct.pack(">II", side, side)
        data[29:33] = struct.pack(">I", zlib.crc32(data[12:29]))
        return bytes(data)

    assert image_size(claiming(16384)) == (16384, 16384)
    with pytest.raises(CorruptDataError, match="too many pixels; received '16385 x 16385'"):
        image_size(claiming(16385))


def test_threads_leave_the_filters_of_warnings_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    data = encode_image(PHOTO[:4, :4], codec="png")
    monkeypatch.setattr(warnings, "filters", ())  # they are the whole program's: nothing is put in, for no time
    assert decode_image(data).shape == (4, 4, 3)
