import io
import sys

import numpy as np
import PIL.Image
import PIL.ImageOps
import pytest

from lockstep.data.images.codec import decode_image, image_size
from lockstep.data.sources.transcoding import Transcoding
from lockstep.errors import CorruptDataError, InvalidInputError


def picture(height: int, width: int) -> PIL.Image.Image:
    rows, columns = np.mgrid[:height, :width]
    pixels = np.stack([rows * 255 // height, columns * 255 // width, np.full_like(rows, 60)], axis=-1)
    return PIL.Image.fromarray(pixels.astype(np.uint8))


def as_file(image: PIL.Image.Image, kind: str = "JPEG", **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def test_a_file_is_kept_as_it_is() -> None:
    for data in (as_file(picture(30, 50)), as_file(picture(30, 50), "PNG")):
        assert Transcoding().apply(data) is data
    assert Transcoding().keeps_files
    assert Transcoding().to_json() == {}


@pytest.mark.parametrize("transcoding", [Transcoding(), Transcoding(size=(8, 8)), Transcoding(codec="png")])
def test_a_damaged_file_is_refused(transcoding: Transcoding) -> None:
    whole = as_file(picture(300, 400))
    for data in (b"", whole[:50], whole[: len(whole) // 2], b"BM" + bytes(100), as_file(picture(9, 9), "PNG")[:-30]):
        with pytest.raises(CorruptDataError):
            transcoding.apply(data)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("size", [None, (30, 20)])
def test_images_are_turned_upright(orientation: int, size: tuple[int, int] | None) -> None:
    image = picture(240, 160)
    exif = PIL.Image.Exif()
    exif[0x0112] = orientation
    data = as_file(image, exif=exif, quality=95)
    expected = PIL.ImageOps.exif_transpose(PIL.Image.open(io.BytesIO(data)))
    if size is not None:
        expected = PIL.ImageOps.fit(expected, (size[1], size[0]), PIL.Image.Resampling.BILINEAR)
    found = decode_image(Transcoding(codec="png", size=size).apply(data))
    assert found.shape == (expected.height, expected.width, 3)
    assert np.abs(found.astype(int) - np.asarray(expected)).mean() < 2


@pytest.mark.parametrize(("height", "width"), [(400, 300), (100, 900), (20, 10), (64, 64)])
def test_crop_takes_the_middle(height: int, width: int) -> None:
    image = picture(height, width)
    found = decode_image(Transcoding(size=(64, 48), codec="png").apply(as_file(image, "PNG")))
    expected = PIL.ImageOps.fit(image, (48, 64), PIL.Image.Resampling.BILINEAR)
    np.testing.assert_allclose(found.astype(int), np.asarray(expected), atol=1)


def test_fit_keeps_the_whole_and_its_shape() -> None:
    fit = Transcoding(size=(64, 48), resizing="fit")
    sizes = {(400, 300): (64, 48), (100, 900): (5, 48), (20, 10): (20, 10), (1000, 1): (64, 1)}
    for (height, width), expected in sizes.items():
        assert image_size(fit.apply(as_file(picture(height, width)))) == expected


def test_codec_and_quality() -> None:
    data = as_file(picture(100, 100))
    assert Transcoding(codec="png").apply(data)[:4] == b"\x89PNG"
    assert len(Transcoding(codec="jpeg", quality=20).apply(data)) < len(Transcoding(codec="jpeg").apply(data))
    assert Transcoding(codec="jpeg").to_json() == {"codec": "jpeg", "quality": 90}
    assert Transcoding(size=(3, 4), codec="png").to_json() == {"image_size": [3, 4], "resize": "crop", "codec": "png"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": (0, 5)}, r"the size of images \(size\); received \(0, 5\)"),
        ({"size": (5,)}, "the size of images"),
        ({"resizing": "stretch"}, r"how images are resized \(resizing\); received 'stretch'; allowed: crop, fit"),
        ({"codec": "webp"}, r"the codec of images \(codec\); received 'webp'; allowed: jpeg, png"),
        ({"codec": "jpeg", "quality": 101}, r"the quality of JPEGs \(quality\); received 101"),
        ({"quality": 80}, "a quality .* applies only to images encoded as JPEG; give a size .*, or jpeg as the codec"),
        ({"codec": "png", "quality": 80}, "a quality .* applies only to images encoded as JPEG"),
    ],
)
def test_what_is_not_usable_is_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Transcoding(**options)  # type: ignore[arg-type]


def test_the_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    data = as_file(picture(10, 10))
    monkeypatch.setitem(sys.modules, "simplejpeg", None)
    with pytest.raises(InvalidInputError, match=r"simplejpeg.*pip install 'lockstep-train\[images\]'"):
        Transcoding().apply(data)
