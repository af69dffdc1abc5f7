"""What torch.save has written: looked at from outside, and never unpickled.

Such a file is a zip archive around one pickle. torch, zipfile and a person must all see the same archive in it, so
whatever could be read in two ways is refused; and the pickle is read as the list of instructions that it is, to see
which names it would call.
"""

from __future__ import annotations

import os
import pickletools
import stat
import struct
import sys
import zipfile
import zlib
from collections.abc import Iterator
from typing import BinaryIO

_LOCAL = struct.Struct("<4s22xHH")  # signature, length of the name, length of what follows it
_LARGEST_PICKLE = 64 << 20
_MOST_MEMBERS = 1 << 20
_END_OF_ARCHIVE = 22
_LEGACY = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19"

_BUILTINS = "bool bytearray bytes complex dict float frozenset int list object range set slice str tuple"
_STORAGES = "Double Float Half BFloat16 Long Int Short Char Byte Bool ComplexFloat ComplexDouble QInt8 QUInt8 QInt32"
_DTYPES = (
    "float64 float32 float16 bfloat16 float8_e4m3fn float8_e5m2 int64 int32 int16 int8 uint64 uint32 uint16 uint8 bool "
    "complex64 complex128"
)
_REBUILD = (
    "_rebuild_tensor _rebuild_tensor_v2 _rebuild_tensor_v3 _rebuild_parameter _rebuild_parameter_with_state "
    "_rebuild_qtensor _rebuild_sparse_tensor _rebuild_meta_tensor_no_storage _rebuild_wrapper_subclass"
)
_NUMBERS = "Float64 Float32 Int64 Int32 UInt32 UInt64 Bool"
_HARMLESS = {
    "builtins": set(_BUILTINS.split()),
    "__builtin__": {*_BUILTINS.split(), "unicode", "long", "xrange"},
    "collections": {"OrderedDict", "defaultdict", "Counter", "deque"},
    "_codecs": {"encode"},
    "torch": {f"{kind}Storage" for kind in _STORAGES.split()} | set(_DTYPES.split()) | {"Size", "device", "Tensor"},
    "torch.storage": {"UntypedStorage", "TypedStorage"},
    "torch._utils": set(_REBUILD.split()),
    "torch._tensor": {"_rebuild_from_type_v2"},
    "torch.nn.parameter": {"Parameter"},
    "torch.serialization": {"_get_layout"},
    "numpy": {"ndarray", "dtype", "bool_", *_NUMBERS.lower().split()},
    **{f"numpy.{core}.multiarray": {"_reconstruct", "scalar"} for core in ("core", "_core")},
    **{f"numpy.{core}.numeric": {"_frombuffer"} for core in ("core", "_core")},
    "numpy.dtypes": {f"{kind}DType" for kind in _NUMBERS.split()},
    **{
        f"torchao.{place}.subclass_{kind.lower()}": {f"OptimState{kind}"}
        for place in ("optim", "prototype.low_bit_optim")
        for kind in ("8bit", "4bit", "Fp8")
    },
}
"""By module, what the state of an optimizer, a scheduler or a random generator is made of; none of it runs anything."""
_NEVER = {"torch", "numpy", "__builtin__", *sys.stdlib_module_names}
"""Packages of which only what is harmless is let pass, also where the digest of the file is right."""

_CODES = {one.name: ord(one.code) for one in pickletools.opcodes}
_ARGUMENTS = {ord(one.code): one.arg.n if one.arg else 0 for one in pickletools.opcodes}
"""By instruction: the bytes of its argument, or how their number is told."""
_WIDTHS = {
    pickletools.TAKEN_FROM_ARGUMENT1: 1,
    pickletools.TAKEN_FROM_ARGUMENT4: 4,
    pickletools.TAKEN_FROM_ARGUMENT4U: 4,
    pickletools.TAKEN_FROM_ARGUMENT8U: 8,
}
_TEXTS = {_CODES["SHORT_BINUNICODE"]: 1, _CODES["BINUNICODE"]: 4, _CODES["BINUNICODE8"]: 8}
KEEP = {_CODES[name] for name in ("MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT")}
RECALL = {_CODES[name] for name in ("GET", "BINGET", "LONG_BINGET")}
_IN_DIGITS = {_CODES["PUT"], _CODES["GET"]}
_NAMES = {_CODES["GLOBAL"], _CODES["INST"]}
_REGISTERED = {_CODES[name] for name in ("EXT1", "EXT2", "EXT4")}
_NEUTRAL = {_CODES["PROTO"], _CODES["FRAME"]}
_MEMOIZE, _STACK_GLOBAL, _STOP = _CODES["MEMOIZE"], _CODES["STACK_GLOBAL"], _CODES["STOP"]
_NO_TEXTS = (None, None)


class Crcs:
    """Looks at the bytes of an archive as they are read, in order, and raises ValueError at the first wrong CRC."""

    def __init__(self, members: list[tuple[int, int, int, str]]) -> None:
        """`members` are (start, end, CRC, name)."""
        self._members = sorted(members, reverse=True)
        self._crc = 0

    def look(self, offset: int, data: memoryview) -> None:
        """Look at `data`, which begins at byte `offset` of the file."""
        end = offset + len(data)
        while self._members and self._members[-1][0] < end:
            start, stop, crc, name = self._members[-1]
            first = max(start, offset)
            if first < stop:
                self._crc = zlib.crc32(data[first - offset : min(stop, end) - offset], self._crc)
            if stop > end:
                return
            if self._crc != crc:
                raise ValueError(f"is broken (CRC of {name})")
            self._members.pop()
            self._crc = 0


def members(file: BinaryIO, *, trusted: bool = False) -> list[tuple[int, int, int, str]]:
    """Return (start, end, CRC, name) of what an archive of torch's holds, once nothing in it can run anything.

    `trusted` is for a file whose digest is that of its manifest: classes of other packages are then its own business,
    and nobody needs its CRCs.
    Raises ValueError saying what is wrong with it, and OSError.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    first = file.read(16)
    if first.startswith(_LEGACY):
        raise ValueError("is in torch's old format, which cannot be verified without running it")
    if not first.startswith(b"PK\x03\x04"):  # torch would take anything else for a bare pickle
        raise ValueError("is broken (no archive of torch's)")
    try:
        with zipfile.ZipFile(file) as archive:
            _check_members(file, archive, size)
            _check_pickles(archive, trusted=trusted)
            return [] if trusted else list(_places(file, archive))
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, struct.error, zlib.error) as error:
        raise ValueError(f"is broken ({error})") from None


def program(file: BinaryIO) -> bytes:
    """Return the pickle in an archive of torch's, as bytes. Raises ValueError as `members` does, and OSError."""
    members(file, trusted=True)
    with zipfile.ZipFile(file) as archive:
        return next(archive.read(info) for info in archive.infolist() if info.filename.endswith(".pkl"))


def _check_members(file: BinaryIO, archive: zipfile.ZipFile, size: int) -> None:
    infos = archive.infolist()
    file.seek(size - _END_OF_ARCHIVE)
    if archive.comment or not file.read(4) == b"PK\x05\x06":
        raise ValueError("is broken (something follows the archive)")
    if len(infos) > _MOST_MEMBERS or len({info.filename for info in infos}) != len(infos):
        raise ValueError("is broken (a name comes twice)")
    if sum(info.file_size for info in infos) > size:
        raise ValueError("declares more than it holds: it would swell beyond all measure")
    for info in infos:
        if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1 or info.file_size != info.compress_size:
            raise ValueError(f"is broken ({info.filename} is not stored as it is)")
        if stat.S_ISLNK(info.external_attr >> 16):
            raise ValueError(f"is broken ({info.filename} is a link)")


def _places(file: BinaryIO, archive: zipfile.ZipFile) -> Iterator[tuple[int, int, int, str]]:
    at = 0
    for info in sorted(archive.infolist(), key=lambda info: info.header_offset):
        if info.header_offset < at:
            raise ValueError(f"is broken (where {info.filename} lies)")
        start = info.header_offset + _local_length(file, info)
        at = start + info.file_size
        yield start, at, info.CRC, info.filename


def _local_length(file: BinaryIO, info: zipfile.ZipInfo) -> int:
    file.seek(info.header_offset)
    signature, name_length, extra_length = _LOCAL.unpack(file.read(_LOCAL.size))
    name = file.read(name_length)
    if signature != b"PK\x03\x04" or name != info.orig_filename.encode("utf-8" if info.flag_bits & 0x800 else "cp437"):
        raise ValueError(f"is broken (the header of {info.filename})")
    return _LOCAL.size + int(name_length) + int(extra_length)


def _check_pickles(archive: zipfile.ZipFile, *, trusted: bool) -> None:
    infos = archive.infolist()
    programs = [info for info in infos if info.filename.endswith(".pkl")]
    if [info.filename.rpartition("/")[2] for info in programs] != ["data.pkl"]:
        raise ValueError("is broken (it must hold one data.pkl)")
    if any("/code/" in info.filename or info.filename.endswith((".py", ".so", ".dll")) for info in infos):
        raise ValueError("holds a program")
    if programs[0].file_size > _LARGEST_PICKLE:
        raise ValueError(f"is broken (a pickle of {programs[0].file_size} bytes)")
    for name in called(archive.read(programs[0])):
        if not _passes(name, trusted=trusted):
            raise ValueError(f"would call {name} when it is loaded: it was never loaded")


def _passes(name: str, *, trusted: bool) -> bool:
    module, _, what = name.partition(" ")
    if what in _HARMLESS.get(module, ()):
        return True
    return trusted and bool(what) and "." not in what and module.partition(".")[0] not in _NEVER


def called(data: bytes) -> set[str]:
    """Return the names, as `module name`, that a pickle would import. Nothing is run.

    A name that is put together only while it runs is told as `?`. Raises ValueError for what is no pickle.
    """
    names: set[str] = set()
    last: tuple[str | None, str | None] = _NO_TEXTS
    """What the last two instructions have put on the stack, where that is a text."""
    memo: dict[int, str | None] = {}
    for code, argument in instructions(data):
        if code in _NEUTRAL:
            continue
        if code in KEEP:
            memo[memo_number(code, argument, len(memo))] = last[1]
        elif code in _TEXTS:
            last = last[1], argument[_TEXTS[code] :].decode("utf-8", "surrogatepass")
        elif code in RECALL:
            last = last[1], memo.get(memo_number(code, argument, len(memo)))
        else:
            last = _NO_TEXTS if code != _STACK_GLOBAL else _named(names, last)
            if code in _NAMES:
                names.add(argument.decode("utf-8", "replace").strip("\n").replace("\n", " "))
            elif code in _REGISTERED:
                names.add("?")
    return names


def _named(names: set[str], last: tuple[str | None, str | None]) -> tuple[None, None]:
    names.add("?" if None in last else f"{last[0]} {last[1]}")
    return _NO_TEXTS


def memo_number(code: int, argument: bytes, kept: int) -> int:
    """Return the number under which an instruction of KEEP or RECALL finds what is kept, so far `kept` values."""
    if code == _MEMOIZE:
        return kept
    return int(argument) if code in _IN_DIGITS else int.from_bytes(argument, "little")


def instructions(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (code, argument) of each instruction up to the last; `pickletools.genops` takes longer."""
    at, size = 0, len(data)
    while at < size:
        code = data[at]
        if code not in _ARGUMENTS:
            raise ValueError(f"is broken (its pickle has an instruction {code})")
        kind = _ARGUMENTS[code]
        start, at = at + 1, at + 1
        if kind > 0:
            at += kind
        elif kind == pickletools.UP_TO_NEWLINE:
            for _ in range(2 if code in _NAMES else 1):
                at = data.find(b"\n", at) + 1 or size + 1
        elif kind < 0:
            width = _WIDTHS[kind]
            at += width + int.from_bytes(data[at : at + width], "little")
        if at > size:
            break
        yield code, data[start:at]
        if code == _STOP:
            if at != size:
                raise ValueError("is broken (something follows its pickle)")
            return
    raise ValueError("is broken (its pickle is cut short)")
