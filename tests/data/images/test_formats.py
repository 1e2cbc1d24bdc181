import io

import PIL.Image
import pytest

from lockstep.data.images.codec import decode_image
from lockstep.data.images.formats import format_of
from lockstep.errors import CorruptDataError


@pytest.mark.parametrize("name", ["GIF", "WebP", "BMP", "TIFF", "ICO"])
def test_another_format_is_named(name: str) -> None:
    file = io.BytesIO()
    PIL.Image.new("RGB", (20, 20)).save(file, name)
    with pytest.raises(
        CorruptDataError, match=f"not an image that can be read; received '{name}, .* bytes'; allowed: JPEG"
    ):
        decode_image(file.getvalue())


def test_what_is_no_picture_is_named_where_it_is_known() -> None:
    found = [format_of(data) for data in (b"  <!DOCTYPE html>", b"<svg x>", b"%PDF-1.7", b"\0\0\0\x1cftypheic", b"x")]
    assert found == ["HTML", "SVG", "PDF", "HEIC", None]
    assert format_of(b"") is None
