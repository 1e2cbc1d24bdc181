"""Numbers, sizes and durations in words."""

from __future__ import annotations


def number_text(count: int, noun: str) -> str:
    """Returns a number with its noun: "1 row", "1,024 rows"."""
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def size_text(num_bytes: float, base: int = 1024) -> str:
    """Returns a size with its unit: "414 MiB"; with ``base=1000``, "819 GB"."""
    units = ("B", "kB", "MB", "GB", "TB") if base == 1000 else ("B", "KiB", "MiB", "GiB", "TiB")
    return _scaled(num_bytes, units, base=base)


def count_text(number: float, unit: str) -> str:
    """Returns a large count with its unit: "9.39 TFLOP"."""
    return _scaled(number, (unit, *(f"{prefix}{unit}" for prefix in ("k", "M", "G", "T", "P", "E"))), base=1000)


def _scaled(number: float, units: tuple[str, ...], *, base: int) -> str:
    place = 0
    while number >= base and place < len(units) - 1:
        number, place = number / base, place + 1
    return (
        f"{number:.0f} {units[0]}"
        if place == 0
        else f"{number:.3g} {units[place]}"
        if number < 999
        else f"{number:.0f} {units[place]}"
    )


def time_text(seconds: float) -> str:
    """Returns a duration with its unit: "47.7 ms", "3.1 min"."""
    for unit, length_s in (("h", 3600.0), ("min", 60.0), ("s", 1.0), ("ms", 1e-3)):
        if seconds >= length_s:
            return f"{seconds / length_s:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
