"""Examples built by hand, byte by byte: as others may write them, and damaged ones."""


def varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def example(*entries: bytes) -> bytes:
    return field(1, b"".join(field(1, entry) for entry in entries))


def entry(name: str, feature: bytes) -> bytes:
    return field(1, name.encode()) + field(2, feature)


UNPACKED = entry("x", field(3, b"\x08\x05\x08\xac\x02"))
UNUSUAL = {
    "numbers that are not packed": example(UNPACKED),
    "both forms at once": example(entry("x", field(3, b"\x08\x05" + field(1, b"\x01\x02")))),
    "the value before the name": example(field(2, field(3, field(1, b"\x07"))) + field(1, b"x")),
    "a name twice": example(entry("x", field(3, field(1, b"\x01"))), entry("x", field(3, field(1, b"\x02")))),
    "a name twice, once without a kind": example(entry("x", field(3, field(1, b"\x01"))), entry("x", b"")),
    "an unknown field": example(entry("x", field(3, field(1, b"\x01")))) + field(9, b"abc"),
    "a feature in two parts": example(entry("x", field(3, field(1, b"\x01")) + field(3, field(1, b"\x02")))),
    "features in two parts": example(entry("y", field(3, b""))) + example(UNPACKED),
    "no kind": example(entry("x", b""), entry("y", b"")),
    "an empty list": example(entry("x", field(3, b""))),
}
