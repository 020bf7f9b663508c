"""The GGUF container: its metadata and its list of tensors, read from a file that nobody vouches for.

Layout (little-endian): magic ``GGUF``, version, tensor count, key count; then keys with typed values; then one
record per tensor (name, dimensions, type, offset); then, aligned, the tensors' data. Source: the GGUF
specification, https://github.com/ggml-org/ggml/blob/master/docs/gguf.md

We read the header ourselves because the ``gguf`` library makes several arrays per metadata element (seconds, and
memory without bound for a hostile file). Here every count and size is checked against what the file still holds
before anything of that size is made.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import BinaryIO

from orchestra.localengine.weights.fields import DAMAGED

__all__ = ["Container", "MetadataValue", "TensorRecord", "read_container"]

MetadataValue = int | float | bool | str | list[str] | array  # type: ignore[type-arg]
"""A scalar, a list of strings, or an ``array.array`` of numbers."""

_MAX_HEADER = 128 << 20  # bytes; the largest vocabularies in use need some 20 MiB
_MAX_STRING = 16 << 20
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 16
_MAX_ELEMENTS = 1 << 22  # of one array
_MAX_ALIGNMENT = 1 << 20
_MAX_DIMENSIONS = 4

_STRING, _ARRAY = 8, 9
_BOOL = 7
# value type -> (struct format, array.array typecode)
_NUMBERS = {
    0: ("<B", "B"),
    1: ("<b", "b"),
    2: ("<H", "H"),
    3: ("<h", "h"),
    4: ("<I", "I"),
    5: ("<i", "i"),
    6: ("<f", "f"),
    _BOOL: ("<?", "B"),
    10: ("<Q", "Q"),
    11: ("<q", "q"),
    12: ("<d", "d"),
}


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """One tensor's place. ``type_id`` is a ``GGMLQuantizationType``.

    ``shape`` is row-major, the reverse of the file's order; ``offset`` counts from the start of the file.
    """

    name: str
    shape: tuple[int, ...]
    type_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class Container:
    """A parsed header. ``size`` is the file's length in bytes."""

    metadata: Mapping[str, MetadataValue]
    tensors: Mapping[str, TensorRecord]
    size: int


def read_container(file: BinaryIO) -> Container:
    """Parse the header of an open GGUF file. Raises ValueError (fault and remedy) on whatever is not right."""
    cursor = _Cursor(file)
    if cursor.size < 24:
        raise ValueError(f"it has only {cursor.size} bytes; {DAMAGED}")
    magic = cursor.take(4, "the magic number")
    if magic != b"GGUF":
        raise ValueError(f"it does not start with 'GGUF' but with {magic!r}; give a model file in GGUF format")
    version = cursor.number("<I", "the version")
    if version not in (2, 3):
        if version & 0xFFFF == 0:
            raise ValueError("it is a big-endian GGUF file; give a little-endian one")
        raise ValueError(f"it has GGUF version {version}; versions 2 and 3 are read, convert the model again")
    tensor_count = cursor.count("tensors", _MAX_TENSORS, least=24)
    key_count = cursor.count("metadata keys", _MAX_KEYS, least=13)

    metadata: dict[str, MetadataValue] = {}
    for _ in range(key_count):
        key = cursor.string("a metadata key")
        if key in metadata:
            raise ValueError(f"metadata key {key!r} occurs twice; {DAMAGED}")
        metadata[key] = cursor.value(key)

    records = [cursor.tensor() for _ in range(tensor_count)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= _MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment!r}, not a power of two; {DAMAGED}")
    start = -(-cursor.position // alignment) * alignment
    tensors: dict[str, TensorRecord] = {}
    for name, shape, type_id, offset in records:
        if name in tensors:
            raise ValueError(f"tensor {name!r} occurs twice; {DAMAGED}")
        if start + offset > cursor.size:
            raise ValueError(f"tensor {name!r} starts past the end of the file; {DAMAGED}")
        tensors[name] = TensorRecord(name, shape, type_id, start + offset)
    return Container(metadata, tensors, cursor.size)


class _Cursor:
    """Reads forward through the header and never asks for more than is there."""

    def __init__(self, file: BinaryIO) -> None:
        self.size = os.fstat(file.fileno()).st_size
        self.position = 0
        self._file = file
        self._end = min(self.size, _MAX_HEADER)

    def take(self, count: int, what: str) -> bytes:
        if count > self._end - self.position:
            if self._end < self.size:
                raise ValueError(f"{what} lies past the first {_MAX_HEADER >> 20} MiB of the header; {DAMAGED}")
            raise ValueError(f"it ends inside {what}; {DAMAGED}")
        data = self._file.read(count)
        if len(data) != count:
            raise ValueError(f"it ends inside {what}; {DAMAGED}")
        self.position += count
        return data

    def number(self, form: str, what: str) -> int:
        (value,) = struct.unpack(form, self.take(struct.calcsize(form), what))
        assert isinstance(value, int)
        return value

    def count(self, what: str, most: int, least: int) -> int:
        """A 64-bit count of things that take at least ``least`` bytes each."""
        count = self.number("<Q", f"the number of {what}")
        if count > most or count * least > self._end - self.position:
            raise ValueError(f"it claims {count:,} {what}, more than it can hold; {DAMAGED}")
        return count

    def string(self, what: str) -> str:
        length = self.number("<Q", what)
        if length > _MAX_STRING:
            raise ValueError(f"{what} claims {length:,} bytes; {DAMAGED}")
        try:
            return self.take(length, what).decode("utf-8")
        except UnicodeDecodeError:
            raise ValueError(f"{what} is not UTF-8; {DAMAGED}") from None

    def value(self, key: str) -> MetadataValue:
        kind = self.number("<I", f"the type of {key!r}")
        if kind == _STRING:
            return self.string(f"the text of {key!r}")
        if kind == _ARRAY:
            return self._array(key)
        if kind not in _NUMBERS:
            raise ValueError(f"metadata key {key!r} has unknown type {kind}; {DAMAGED}")
        form = _NUMBERS[kind][0]
        value: int | float | bool = struct.unpack(form, self.take(struct.calcsize(form), f"the value of {key!r}"))[
            0
        ]
        return value

    def _array(self, key: str) -> MetadataValue:
        kind = self.number("<I", f"the element type of {key!r}")
        what = f"elements of {key!r}"
        if kind == _STRING:
            return [self.string(what) for _ in range(self.count(what, _MAX_ELEMENTS, least=8))]
        if kind not in _NUMBERS:
            raise ValueError(f"metadata key {key!r} is an array of unknown type {kind}; {DAMAGED}")
        form, typecode = _NUMBERS[kind]
        width = struct.calcsize(form)
        count = self.count(what, _MAX_ELEMENTS, least=width)
        return array(typecode, self.take(count * width, what))

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self.string("a tensor's name")
        dimensions = self.number("<I", f"the dimensions of tensor {name!r}")
        if not 1 <= dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} claims {dimensions} dimensions; {DAMAGED}")
        shape = struct.unpack(f"<{dimensions}Q", self.take(8 * dimensions, f"the shape of tensor {name!r}"))
        type_id = self.number("<I", f"the type of tensor {name!r}")
        offset = self.number("<Q", f"the offset of tensor {name!r}")
        return name, tuple(reversed(shape)), type_id, offset
