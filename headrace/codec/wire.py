"""The few rules of the protobuf encoding that it takes to write and read large fields by hand.

Source: protobuf.dev/programming-guides/encoding. A field is a tag (number << 3 | wire type) as a
varint, then a varint, 4 or 8 bytes, or a length and that many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace.errors import CodecError

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5
_MAX_VARINT_BYTES = 10
_UINT64 = 2**64


def varint(value: int) -> bytes:
    """``value`` (0 <= value < 2^64) in base 128, lowest group first."""
    if value < 0x80:
        return _SMALL[value]
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


_SMALL = tuple(bytes((value,)) for value in range(0x80))


def tag(number: int, wire_type: int) -> bytes:
    """The tag of field ``number``."""
    return varint(number << 3 | wire_type)


def length_field(number: int, content: bytes) -> bytes:
    """A whole field of bytes, text or a submessage."""
    return tag(number, LENGTH) + varint(len(content)) + content


def read_varint(data: bytes, position: int, end: int) -> tuple[int, int]:
    """The varint at ``position`` and the position after it; CodecError if it doesn't end before ``end``."""
    if position < end and data[position] < 0x80:
        return data[position], position + 1
    value = 0
    for index in range(_MAX_VARINT_BYTES):
        if position + index >= end:
            raise CodecError(f"cut off inside a number at byte {position}")
        group = data[position + index]
        value |= (group & 0x7F) << (7 * index)
        if group < 0x80:
            return value % _UINT64, position + index + 1
    raise CodecError(f"a number longer than {_MAX_VARINT_BYTES} bytes at byte {position}")


def read_field(data: bytes, position: int, end: int) -> tuple[int, int, int, int, int]:
    """The field at ``position``: (number, wire type, a, b, position after it), nothing copied.

    For VARINT a is the value; for the others the content is ``data[a:b]``. CodecError if the field
    reaches beyond ``end``.
    """
    key, position = read_varint(data, position, end)
    number, wire_type = key >> 3, key & 7
    if wire_type == LENGTH:
        size, position = read_varint(data, position, end)
    elif wire_type == VARINT:
        value, position = read_varint(data, position, end)
        return number, VARINT, value, 0, position
    elif wire_type == FIXED64:
        size = 8
    elif wire_type == FIXED32:
        size = 4
    else:
        raise CodecError(f"field {number} has wire type {wire_type}, which nobody writes")
    if size > end - position:
        raise CodecError(
            f"field {number} claims {size} bytes at byte {position}, but only {end - position} follow"
        )
    return number, wire_type, position, position + size, position + size


def fields(data: bytes, position: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message in ``data[position:end]``, as :func:`read_field` gives them."""
    while position < end:
        number, wire_type, a, b, position = read_field(data, position, end)
        yield number, wire_type, a, b


def take_out(data: bytes, position: int, end: int, number: int) -> tuple[list[bytes], bytes]:
    """Split the message in ``data[position:end]``: contents of all its fields ``number`` (below 16,
    of wire type LENGTH), and what is left, a message without them.

    The hot loop of reading small fragments: a call for each of their thirty fields would cost more
    than all else, so short fields are stepped over in place. CodecError if a field reaches beyond ``end``.
    """
    wanted = number << 3 | LENGTH
    contents: list[bytes] = []
    rest: list[bytes] = []
    begin = position  # of the run of other fields
    try:
        while position < end:
            key = data[position]
            if key == wanted:
                rest.append(data[begin:position])
                while position < end and data[position] == wanted and data[position + 1] < 0x80:
                    after = position + 2 + data[position + 1]
                    contents.append(data[position + 2 : after])
                    position = after
                if position < end and data[position] == wanted:  # a long one
                    _, _, a, b, position = read_field(data, position, end)
                    contents.append(data[a:b])
                begin = position
            elif key < 0x80 and key & 7 == VARINT:
                position += 1
                while data[position] >= 0x80:
                    position += 1
                position += 1
            else:
                position = read_field(data, position, end)[4]
    except IndexError:
        position = end + 1
    if position > end:
        raise CodecError(f"cut off inside a field at byte {end}")
    rest.append(data[begin:end])
    return contents, b"".join(rest)
