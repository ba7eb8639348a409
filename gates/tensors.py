"""Where in a file which tensor lies, so that of two files that differ the first such tensor has a name.

Nothing is unpickled and nothing is unpacked: a part is a range of the file's bytes. Formats: safetensors
(https://github.com/huggingface/safetensors, "Format"), .npy and .npz of numpy, and the zip archives that
torch.save writes. What of a file is not understood has no parts.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from tenure_protocol.codec import Corrupt, parse

#: At most ``length`` bytes from ``start``, fewer at the file's end alone.
Read = Callable[[int, int], bytes]

MOST_HEADER_BYTES = 16 << 20  # of a header or a directory, which is read at once
TENSOR_SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth", ".bin", ".ckpt")
_SAFETENSORS = ".safetensors"
_MOST_NPY_HEADER = 10_000  # numpy's own limit of what it evaluates
_LOCAL_HEADER = struct.Struct("<26xHH")  # APPNOTE.TXT 4.3.7: at its end, lengths of name and extra
_ZIP, _NPY = b"PK\x03\x04", b"\x93NUMPY"


@dataclass(frozen=True)
class Part:
    """One named range of a file."""

    name: str  # for a sentence: tensor gru.weight, array w, entry model/data/3
    start: int  # byte
    size: int  # bytes
    form: str  # what it is, in words: dtype and shape, or how it is stored


def parts(name: str, size: int, read: Read) -> tuple[Part, ...]:
    """The parts of a file of ``size`` bytes in the order of their bytes; none where it is not understood.

    Reads the headers alone, each of them :data:`MOST_HEADER_BYTES` at most. Raises what ``read`` raises.
    """
    begin = read(0, len(_NPY))
    if name.endswith(_SAFETENSORS):
        found = _safetensors(size, read)
    elif begin == _NPY:
        found = _npy(size, read)
    elif begin.startswith(_ZIP):
        found = _zip(size, read)
    else:
        found = []
    return tuple(sorted(found, key=lambda part: (part.start, part.name)))


def _safetensors(size: int, read: Read) -> list[Part]:
    """Eight bytes of the header's length, the header in JSON, and the tensors by their offsets."""
    length = int.from_bytes(read(0, 8), "little")
    if size < 8 or length > min(size - 8, MOST_HEADER_BYTES):
        return []
    try:
        header = parse(read(8, length))
    except Corrupt:
        return []
    begin, found = 8 + length, []
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        offsets = entry.get("data_offsets") if isinstance(entry, dict) else None
        if not isinstance(entry, dict) or not _is_range(offsets, size - begin):
            return []
        form = f"{entry.get('dtype')} {entry.get('shape')}"
        assert isinstance(offsets, list)
        start, end = int(str(offsets[0])), int(str(offsets[1]))
        found.append(Part(f"tensor {name}", begin + start, end - start, form))
    return found


def _is_range(offsets: object, most: int) -> bool:
    """
    >>> _is_range([0, 4], 4), _is_range([0, 5], 4), _is_range([4, 0], 4), _is_range([True, 2], 4)
    (True, False, False, False)
    """
    return (
        isinstance(offsets, Sequence)
        and len(offsets) == 2
        and all(type(place) is int for place in offsets)
        and 0 <= offsets[0] <= offsets[1] <= most
    )


def _npy(size: int, read: Read) -> list[Part]:
    head = io.BytesIO(read(0, min(size, _MOST_NPY_HEADER + 12)))
    try:
        version = np.lib.format.read_magic(head)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(head, _MOST_NPY_HEADER)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(head, _MOST_NPY_HEADER)
        else:
            return []
    except Exception:  # of numpy, of its tokenizer, of ast: the bytes are in memory already
        return []
    return [Part("array", head.tell(), size - head.tell(), f"{dtype} {list(shape)}")]


def _zip(size: int, read: Read) -> list[Part]:
    try:
        with zipfile.ZipFile(_Seekable(size, read)) as archive:
            infos = [info for info in archive.infolist() if not info.is_dir()]
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, OverflowError):
        return []
    found = []
    for info in infos:
        local = read(info.header_offset, _LOCAL_HEADER.size) if info.header_offset >= 0 else b""
        if len(local) < _LOCAL_HEADER.size:
            return []
        name_chars, extra = _LOCAL_HEADER.unpack(local)
        start = info.header_offset + _LOCAL_HEADER.size + name_chars + extra
        is_array = info.filename.endswith(".npy")
        name = f"array {info.filename.removesuffix('.npy')}" if is_array else info.filename
        packed = f", packed to {info.compress_size}" if info.compress_type else ""
        form = f"{info.file_size} bytes{packed}"
        found.append(Part(name if is_array else f"entry {name}", start, info.compress_size, form))
    return found


class _Seekable:
    """As much of a file as zipfile asks for, in bounded reads."""

    def __init__(self, size: int, read: Read) -> None:
        self._size = size
        self._read = read
        self._at = 0

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        if base + offset < 0:
            raise ValueError("before the beginning of the file")
        self._at = base + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def read(self, length: int = -1) -> bytes:
        left = max(self._size - self._at, 0)
        length = left if length < 0 else min(length, left)
        if length > MOST_HEADER_BYTES:
            raise zipfile.BadZipFile(f"its directory takes {length} bytes")
        found = self._read(self._at, length)
        self._at += len(found)
        return found
