"""Detects the format of a file by its first bytes, for errors about files that are not JPEG or PNG."""

from __future__ import annotations

from typing import Final

_BEGINNINGS: Final = (
    (0, b"GIF8", "GIF"),
    (8, b"WEBP", "WebP"),
    (0, b"BM", "BMP"),
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (4, b"ftypavif", "AVIF"),
    (4, b"ftyphei", "HEIC"),
    (4, b"ftypmif1", "HEIC"),
    (0, b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (0, b"\0\0\0\x0cJXL ", "JPEG XL"),
    (0, b"\xff\x0a", "JPEG XL"),
    (0, b"\0\0\1\0", "ICO"),
    (0, b"8BPS", "Photoshop"),
    (0, b"%PDF-", "PDF"),
    (0, b"PK\3\4", "zip"),
)
_TEXTS: Final = ((b"<!doctype html", "HTML"), (b"<html", "HTML"), (b"<svg", "SVG"), (b"<?xml", "XML"))


def format_of(data: bytes) -> str | None:
    """Returns the name of a file's format, by its first bytes; None if the format is not known here."""
    for start, beginning, name in _BEGINNINGS:
        if data.startswith(beginning, start):
            return name
    text = data[:64].lstrip().lower()
    return next((name for beginning, name in _TEXTS if text.startswith(beginning)), None)
